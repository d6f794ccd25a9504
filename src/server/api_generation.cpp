// Routes that generate: from a parsed request to the engine's.
#include "engine/grammar_constraint.h"
#include "models/tool_grammar.h"
#include "server/api.h"
#include "server/grammar_cache.h"
#include "server/ollama.h"

namespace synod::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool ends_with(const std::vector<int32_t>& ids, const std::vector<int32_t>& tail) {
  return !tail.empty() && ids.size() >= tail.size() && std::equal(tail.rbegin(), tail.rend(), ids.rbegin());
}

}  // namespace

Api::Api(ApiOptions options) : options_(std::move(options)), grammars_(std::make_unique<GrammarCache>()) {}

Api::~Api() { stop(); }

void Api::attach(ServedModel model, Generator& generator) {
  model_ = std::make_unique<ServedModel>(std::move(model));
  generator_ = &generator;
  grammars_->set_vocabulary(model_->vocabulary);
  slots_ = std::make_unique<SlotBook>(generator.stats().max_sequences);
  is_loaded_ = true;
}

void Api::check_model(std::string_view name) const {
  if (name.empty()) return;
  std::string wanted = lower(name);
  if (wanted.ends_with(":latest")) wanted.resize(wanted.size() - 7);
  if (wanted == "default" || wanted == lower(model_->id)) return;
  for (const std::string& alias : model_->aliases) {
    if (wanted == lower(alias)) return;
  }
  throw ApiError(404,
                 fmt::format("the model {} does not exist here; this server has {}",
                             shown(Json(std::string(name))), shown(Json(model_->id))),
                 "model", "model_not_found");
}

RequestLimits Api::limits() const {
  return {*model_->tokenizer, model_->max_choices, model_->sampling, model_->thinking};
}

DialogueOptions Api::dialogue_options(const ChatRequest& request) const {
  const Parameters& p = request.parameters;
  DialogueOptions d = request.dialogue;
  d.thinking = p.thinking.value_or(model_->thinking);
  d.reasoning_effort = p.reasoning_effort;
  if (p.template_arguments.is_object()) d.template_arguments = dump(p.template_arguments);
  if (p.format.kind == ResponseFormat::Kind::kJsonSchema) d.response_schema = p.format.source;
  return d;
}

std::vector<int32_t> Api::chat_prompt(const ChatRequest& request) const {
  return encode_prompt(*model_->tokenizer,
                       model_->dialogue->render(request.messages, dialogue_options(request)));
}

std::shared_ptr<const ConstraintFactory> Api::constraint(const ResponseFormat& format) const {
  if (format.kind == ResponseFormat::Kind::kText) return nullptr;
  try {
    return constrain(grammars_->get(format));
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::kUsage) throw;
    bad_field(format.field, "{}", error.what());
  }
}

std::shared_ptr<const ConstraintFactory> Api::chat_constraint(const ChatRequest& request) const {
  const DialogueOptions& d = request.dialogue;
  const bool is_forced = d.tool_choice == ToolChoice::kRequired || d.tool_choice == ToolChoice::kNamed;
  const bool is_held =
      is_forced || (request.is_strict && d.tool_choice == ToolChoice::kAuto && !d.tools.empty());
  if (!is_held || (!is_forced && request.parameters.format.kind != ResponseFormat::Kind::kText)) {
    return constraint(request.parameters.format);
  }
  const ToolGrammar* family = model_->dialogue->tool_grammar();
  if (family == nullptr) {
    if (is_forced) bad_field("tool_choice", "this model's dialogue format has no grammar of calls; use auto");
    return constraint(request.parameters.format);
  }
  std::vector<Tool> tools;
  for (const Tool& tool : d.tools) {
    if (d.tool_choice != ToolChoice::kNamed || tool.name == d.tool_choice_name) tools.push_back(tool);
  }
  std::string key = fmt::format("{}{}", is_forced, request.is_parallel);
  for (const Tool& tool : tools) key += '\0' + tool.name + '\0' + tool.parameters;
  try {
    return constrain(grammars_->get("tools" + key, [&](GrammarBuilder& builder) {
      const int64_t max_calls = request.is_parallel ? -1 : 1;
      return is_forced ? family->required_calls(builder, *model_->tokenizer, tools, max_calls)
                       : family->optional_calls(builder, *model_->tokenizer, tools, max_calls);
    }));
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::kUsage) throw;
    bad_field("tools", "{}", error.what());
  }
}

GenerationRequest Api::generation(const Parameters& p, std::vector<int32_t> prompt) const {
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt >= model_->context_length) {
    ApiError error(400,
                   fmt::format("the prompt has {} tokens, the context {}; there must be room for an answer",
                               n_prompt, model_->context_length),
                   "messages", "context_length_exceeded");
    error.n_prompt_tokens = n_prompt;
    error.n_context = model_->context_length;
    throw error;
  }
  GenerationRequest g;
  g.prompt = std::move(prompt);
  g.sampling = p.sampling;
  g.n = p.max_tokens == 0 ? 1 : p.n;  // nothing is chosen, so there is one outcome
  g.max_tokens = p.max_tokens;
  g.min_tokens = p.min_tokens;
  g.stop = p.stop;
  g.stop_ids = p.stop_ids;
  g.ignore_eos = p.ignore_eos;
  g.logprobs = p.logprobs;
  g.top_logprobs = p.top_logprobs;
  g.cache_prompt = p.cache_prompt;
  g.progress = p.stream && p.return_progress;
  if (options_.request_timeout.count() > 0) g.deadline = options_.request_timeout;
  return g;
}

void Api::launch(const HttpRequest& http, const Reply& reply, RunPlan plan) {
  plan.model = model_->id;
  plan.request_id = http.id;
  plan.style = error_style(http.path);
  plan.ping_interval = options_.ping_interval;
  plan.slot = slots_->claim(plan.parameters.slot);
  if (plan.slot != nullptr) plan.slot->ids = plan.generations.front().prompt;
  GenerationRun::launch({*generator_, *model_->tokenizer, tasks_, metrics_}, std::move(plan), reply);
}

void Api::run_chat(const HttpRequest& http, const Reply& reply, const ChatRequest& request,
                   std::unique_ptr<ReplyFormat> format, std::string_view id_prefix) {
  check_model(request.model);
  const Parameters& p = request.parameters;
  RunPlan plan;
  GenerationRequest g = generation(p, chat_prompt(request));
  g.constraint = chat_constraint(request);
  const Dialogue& dialogue = *model_->dialogue;
  g.reasoning.open_ids = model_->tokenizer->encode(dialogue.reasoning_open(), /*parse_special=*/true);
  g.reasoning.close_ids = model_->tokenizer->encode(dialogue.reasoning_close(), /*parse_special=*/true);
  g.reasoning.starts_open = ends_with(g.prompt, g.reasoning.open_ids);
  // A model that was not asked to think must not begin with it where the reply's form is fixed.
  g.constrain_after_reasoning = wants_thinking(dialogue_options(request));
  g.reasoning.max_tokens = p.reasoning_budget >= 0 ? p.reasoning_budget : model_->reasoning_budget;
  plan.generations.push_back(std::move(g));
  plan.dialogue = &dialogue;
  plan.parser.stream_arguments = p.stream;
  if (!request.is_parallel) plan.parser.max_tool_calls = 1;
  plan.parameters = p;
  plan.format = std::move(format);
  plan.id_prefix = id_prefix;
  launch(http, reply, std::move(plan));
}

void Api::run_text(const HttpRequest& http, const Reply& reply, TextRequest request,
                   std::unique_ptr<ReplyFormat> format, std::string_view id_prefix) {
  check_model(request.model);
  RunPlan plan;
  const auto held = constraint(request.parameters.format);
  for (auto& prompt : request.prompts) {
    plan.generations.push_back(generation(request.parameters, std::move(prompt)));
    plan.generations.back().constraint = held;
  }
  plan.parameters = request.parameters;
  plan.format = std::move(format);
  plan.id_prefix = id_prefix;
  launch(http, reply, std::move(plan));
}

void Api::chat_completions(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_openai_chat(parse_json(http.body), limits());
  run_chat(http, reply, request, openai_chat_format(request), "chatcmpl-");
}

void Api::completions(const HttpRequest& http, const Reply& reply) {
  TextRequest request = read_openai_completion(parse_json(http.body), limits());
  auto format = openai_completion_format(request);
  run_text(http, reply, std::move(request), std::move(format), "cmpl-");
}

void Api::native_completion(const HttpRequest& http, const Reply& reply) {
  TextRequest request = read_native_completion(parse_json(http.body), limits());
  auto format = native_completion_format(request);
  run_text(http, reply, std::move(request), std::move(format), "cmpl-");
}

void Api::responses(const HttpRequest& http, const Reply& reply) {
  const Json body = parse_json(http.body);
  const ChatRequest request = read_responses(body, limits());
  run_chat(http, reply, request, responses_format(request, body), "resp_");
}

void Api::messages(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_anthropic(parse_json(http.body), limits(), /*is_counting=*/false);
  run_chat(http, reply, request, anthropic_format(request), "msg_");
}

void Api::count_anthropic(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_anthropic(parse_json(http.body), limits(), /*is_counting=*/true);
  check_model(request.model);
  reply->send({}, dump({{"input_tokens", chat_prompt(request).size()}}));
}

void Api::count_chat(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_openai_chat(parse_json(http.body), limits());
  check_model(request.model);
  reply->send({}, dump({{"object", "response.input_tokens"}, {"input_tokens", chat_prompt(request).size()}}));
}

void Api::count_responses(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_responses(parse_json(http.body), limits());
  check_model(request.model);
  reply->send({}, dump({{"object", "response.input_tokens"}, {"input_tokens", chat_prompt(request).size()}}));
}

void Api::ollama_chat(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_ollama_chat(parse_json(http.body), limits());
  check_model(request.model);
  if (request.messages.empty()) return reply->send({}, ollama_loaded(request.model, /*is_chat=*/true));
  run_chat(http, reply, request, ollama_chat_format(request), "");
}

void Api::ollama_generate(const HttpRequest& http, const Reply& reply) {
  OllamaGenerate request = read_ollama_generate(parse_json(http.body), limits());
  check_model(request.model());
  if (request.is_empty) return reply->send({}, ollama_loaded(request.model(), /*is_chat=*/false));
  if (request.is_raw) {
    auto format = ollama_generate_format(request);
    return run_text(http, reply, std::move(request.text), std::move(format), "");
  }
  run_chat(http, reply, request.chat, ollama_generate_format(request), "");
}

void Api::apply_template(const HttpRequest& http, const Reply& reply) {
  const ChatRequest request = read_openai_chat(parse_json(http.body), limits());
  reply->send(
      {}, dump({{"prompt", join(model_->dialogue->render(request.messages, dialogue_options(request)))}}));
}

}  // namespace synod::server
