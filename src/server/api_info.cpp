// Routes that tell: health, models, properties, slots, tokens.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "server/api.h"
#include "server/ollama.h"

namespace synod::server {
namespace {

// A name in one folder, whatever the file system.
bool is_plain_file_name(std::string_view name) {
  constexpr size_t kLongest = 128;
  if (name.empty() || name.size() > kLongest || name.front() == '.') return false;
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

}  // namespace

void Api::root(const HttpRequest&, const Reply& reply) {
  HttpHead head;
  head.content_type = "text/plain; charset=utf-8";
  reply->send(std::move(head), "synod is running\n");
}

void Api::live(const HttpRequest&, const Reply& reply) { reply->send({}, R"({"status":"ok"})"); }

void Api::health(const HttpRequest&, const Reply& reply) {
  if (is_loaded_) return reply->send({}, R"({"status":"ok"})");
  HttpHead head;
  head.status = 503;
  reply->send(
      std::move(head),
      dump({{"error", {{"code", 503}, {"message", "Loading model"}, {"type", "unavailable_error"}}}}));
}

void Api::ready(const HttpRequest& request, const Reply& reply) {
  if (!is_draining_) return health(request, reply);
  HttpHead head;
  head.status = 503;
  reply->send(
      std::move(head),
      dump({{"error", {{"code", 503}, {"message", "Shutting down"}, {"type", "unavailable_error"}}}}));
}

void Api::metrics(const HttpRequest&, const Reply& reply) {
  if (!options_.metrics) throw ApiError(404, "metrics are turned off");
  HttpHead head;
  head.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply->send(std::move(head),
              metrics_.text(generator_->stats(), n_connections_ ? n_connections_() : 0, model_->id));
}

Json Api::model_json() const {
  const ModelInfo& info = model_->info;
  return {{"id", model_->id},
          {"object", "model"},
          {"created", model_->created},
          {"owned_by", "synod"},
          {"type", "model"},  // Anthropic's names for the same
          {"display_name", model_->id},
          {"created_at", iso_time(model_->created)},
          {"max_model_len", model_->context_length},
          {"meta",
           {{"architecture", info.architecture},
            {"n_vocab", info.vocab_size},
            {"n_ctx", model_->context_length},
            {"n_ctx_train", info.context_length},
            {"n_embd", info.d_model},
            {"n_layer", info.n_layers},
            {"n_params", model_->n_parameters},
            {"size", model_->file_bytes}}}};
}

void Api::models(const HttpRequest&, const Reply& reply) {
  const Json model = model_json();
  reply->send({}, dump({{"object", "list"},
                        {"data", Json::array({model})},
                        {"has_more", false},
                        {"first_id", model_->id},
                        {"last_id", model_->id}}));
}

void Api::one_model(const HttpRequest& request, const Reply& reply) {
  check_model(request.path.substr(std::string_view("/v1/models/").size()));
  reply->send({}, dump(model_json()));
}

void Api::props(const HttpRequest&, const Reply& reply) {
  if (!options_.props) throw ApiError(404, "properties are turned off");
  const SamplerOptions& s = model_->sampling;
  const EngineStats stats = generator_->stats();
  reply->send({}, dump({{"default_generation_settings",
                         {{"n_ctx", model_->context_length},
                          {"params",
                           {{"temperature", s.temperature},
                            {"top_k", s.top_k},
                            {"top_p", s.top_p},
                            {"min_p", s.min_p},
                            {"typical_p", s.typical_p},
                            {"repeat_penalty", s.repetition_penalty},
                            {"repeat_last_n", s.repeat_last_n},
                            {"frequency_penalty", s.frequency_penalty},
                            {"presence_penalty", s.presence_penalty}}}}},
                        {"total_slots", stats.max_sequences},
                        {"model_alias", model_->id},
                        {"model_path", model_->path},
                        {"modalities", {{"vision", false}, {"audio", false}}},
                        {"chat_template", model_->chat_template},
                        {"thinking", model_->thinking},
                        {"fusion", model_->fusion},
                        {"load_seconds", model_->load_seconds},
                        {"build_info", "synod " + options_.version},
                        {"is_sleeping", false}}));
}

void Api::slots(const HttpRequest&, const Reply& reply) {
  if (!options_.slots) throw ApiError(404, "slots are turned off");
  const EngineStats stats = generator_->stats();
  Json list = Json::array();
  for (const SlotInfo& slot : stats.slots) {
    list.push_back({{"id", list.size()},
                    {"request", slot.request},
                    {"choice", slot.choice},
                    {"n_ctx", model_->context_length},
                    {"is_processing", true},
                    {"state", slot.state},
                    {"n_prompt_tokens", slot.prompt_tokens},
                    {"n_prompt_tokens_cache", slot.cached_tokens},
                    {"n_past", slot.length},
                    {"n_decoded", slot.generated}});
  }
  while (static_cast<int64_t>(list.size()) < stats.max_sequences) {
    list.push_back({{"id", list.size()}, {"n_ctx", model_->context_length}, {"is_processing", false}});
  }
  reply->send({}, dump(list));
}

void Api::slot_action(const HttpRequest& http, const Reply& reply) {
  if (!options_.slots) throw ApiError(404, "slots are turned off");
  const std::string_view number = std::string_view(http.path).substr(std::string_view("/slots/").size());
  int64_t slot = -1;
  const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), slot);
  if (failure != std::errc() || end != number.data() + number.size() || slot < 0 || slot >= slots_->size()) {
    throw ApiError(404, fmt::format("slots are 0 to {}, got {}", slots_->size() - 1, shown(Json(number))));
  }
  if (http.query == "action=erase") {
    return reply->send({}, dump({{"id_slot", slot}, {"n_erased", slots_->replace(slot, {}).size()}}));
  }
  const bool saves = http.query == "action=save";
  if (!saves && http.query != "action=restore") {
    throw ApiError(400, fmt::format("action must be save, restore or erase, got {}", shown(Json(http.query))),
                   "action");
  }
  if (options_.slot_save_path.empty()) {
    throw ApiError(501, "this server keeps no files of slots; start it with --slot-save-path", "",
                   "not_supported");
  }
  const Json body = parse_json(http.body);
  const std::string name = Fields(body).require_text("filename");
  if (!is_plain_file_name(name)) {
    bad_field("filename",
              "expected 1 to 128 letters, digits, \".\", \"-\" or \"_\", not beginning with \".\", got {}",
              shown(Json(name)));
  }
  const std::filesystem::path file = std::filesystem::path(options_.slot_save_path) / name;
  const auto start = std::chrono::steady_clock::now();
  int64_t n_tokens = 0;
  if (saves) {
    n_tokens = generator_->save(slots_->ids(slot), file);
    if (n_tokens == 0) {
      throw ApiError(409, fmt::format("slot {} has no text whose rows are still in memory", slot), "",
                     "slot_empty");
    }
  } else {
    std::vector<int32_t> ids;
    try {
      ids = generator_->restore(file);
    } catch (const Error& error) {
      if (error.kind() == Error::Kind::kBadFile) throw ApiError(400, error.what(), "filename");
      throw;
    }
    n_tokens = static_cast<int64_t>(ids.size());
    slots_->replace(slot, std::move(ids));
  }
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  std::error_code ignored;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file, ignored));
  reply->send({}, dump({{"id_slot", slot},
                        {"filename", name},
                        {saves ? "n_saved" : "n_restored", n_tokens},
                        {saves ? "n_written" : "n_read", bytes},
                        {"timings", {{saves ? "save_ms" : "restore_ms", ms}}}}));
}

void Api::tokenize(const HttpRequest& http, const Reply& reply) {
  const Json body = parse_json(http.body);
  const Fields fields(body);
  std::string text = fields.text("content").value_or(fields.text("prompt").value_or(""));
  if (!fields.has("content") && !fields.has("prompt")) bad_field("content", "expected a string, got none");
  const Tokenizer& tokenizer = *model_->tokenizer;
  // As llama.cpp: special tokens in the text count unless the client says otherwise.
  std::vector<int32_t> ids = tokenizer.encode(text, fields.boolean("parse_special").value_or(true));
  const bool add_special =
      fields.boolean("add_special").value_or(fields.boolean("add_special_tokens").value_or(false));
  if (const auto bos = tokenizer.data().bos; bos && add_special && (ids.empty() || ids.front() != *bos)) {
    ids.insert(ids.begin(), *bos);
  }
  Json tokens = Json::array();
  if (fields.boolean("with_pieces").value_or(false)) {
    for (const int32_t id : ids)
      tokens.push_back({{"id", id}, {"piece", std::string(tokenizer.bytes_of(id))}});
  } else {
    tokens = ids;
  }
  reply->send({}, dump({{"tokens", std::move(tokens)},
                        {"count", ids.size()},
                        {"max_model_len", model_->context_length}}));
}

void Api::detokenize(const HttpRequest& http, const Reply& reply) {
  const Json body = parse_json(http.body);
  const Fields fields(body);
  const Json& tokens = fields.require_array("tokens");
  std::vector<int32_t> ids;
  const int64_t vocabulary = model_->tokenizer->vocab_size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is_number_integer() || tokens[i] < 0 || tokens[i] >= vocabulary) {
      bad_field(fields.path("tokens", i), "expected a token id from 0 to {}, got {}", vocabulary - 1,
                shown(tokens[i]));
    }
    ids.push_back(tokens[i].get<int32_t>());
  }
  const std::string text = model_->tokenizer->decode(ids);
  reply->send({}, dump({{"content", text}, {"prompt", text}}));
}

void Api::lora_adapters(const HttpRequest&, const Reply& reply) { reply->send({}, "[]"); }

void Api::not_supported(const HttpRequest& request, const Reply&) {
  throw ApiError(501, fmt::format("{} is not supported by this server", request.path), "", "not_supported");
}

Json Api::ollama_details() const {
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", model_->family},
          {"families", Json::array({model_->family})},
          {"parameter_size", fmt::format("{:.1f}M", static_cast<double>(model_->n_parameters) * 1e-6)},
          {"quantization_level", model_->quantization}};
}

void Api::ollama_version(const HttpRequest&, const Reply& reply) {
  reply->send({}, dump({{"version", options_.version}}));
}

void Api::ollama_tags(const HttpRequest&, const Reply& reply) {
  reply->send({}, dump({{"models", Json::array({{{"name", model_->id},
                                                 {"model", model_->id},
                                                 {"modified_at", iso_time(model_->created)},
                                                 {"size", model_->file_bytes},
                                                 {"digest", ""},
                                                 {"details", ollama_details()}}})}}));
}

void Api::ollama_ps(const HttpRequest&, const Reply& reply) {
  reply->send({}, dump({{"models", Json::array({{{"name", model_->id},
                                                 {"model", model_->id},
                                                 {"size", model_->file_bytes},
                                                 {"digest", ""},
                                                 {"details", ollama_details()},
                                                 {"expires_at", "9999-12-31T23:59:59Z"},
                                                 {"size_vram", 0},
                                                 {"context_length", model_->context_length}}})}}));
}

void Api::ollama_show(const HttpRequest& http, const Reply& reply) {
  const Json body = parse_json(http.body);
  const Fields fields(body);
  check_model(fields.text("model").value_or(fields.text("name").value_or("")));
  const ModelInfo& info = model_->info;
  reply->send({}, dump({{"modelfile", ""},
                        {"parameters", ""},
                        {"template", model_->chat_template},
                        {"details", ollama_details()},
                        {"model_info",
                         {{"general.architecture", info.architecture},
                          {"general.name", info.name},
                          {"general.parameter_count", model_->n_parameters},
                          {info.architecture + ".context_length", info.context_length},
                          {info.architecture + ".embedding_length", info.d_model},
                          {info.architecture + ".block_count", info.n_layers},
                          {info.architecture + ".vocab_size", info.vocab_size}}},
                        {"capabilities", Json::array({"completion", "tools", "thinking"})},
                        {"modified_at", iso_time(model_->created)}}));
}

}  // namespace synod::server
