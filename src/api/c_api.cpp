// The C API: handles around the C++ objects, exceptions turned into codes and a message per thread.
#include <algorithm>
#include <cstring>

#include "synod/synod.h"
#include "synod/synod.hpp"

namespace api = synod::api;

struct synod_model {
  api::Model model;
  std::string architecture, name;  // what get_info points to
};

struct synod_session {
  api::Session session;
  api::Reply reply;  // the last one
};

namespace {

thread_local std::string last_error;

template <typename Work>
synod_status guarded(Work&& work) noexcept {
  try {
    try {
      work();
      return SYNOD_OK;
    } catch (const api::Error& error) {
      last_error = error.what();
      return static_cast<synod_status>(error.kind());
    } catch (const std::exception& error) {
      last_error = error.what();
      return SYNOD_FAILURE;
    }
  } catch (...) {  // not even room for a message
    return SYNOD_FAILURE;
  }
}

void require(bool condition, const char* message) {
  if (!condition) throw api::Error(api::ErrorKind::kUsage, message);
}

// Copies what both sides know of a struct that starts with its size.
template <typename Struct>
Struct known_part(const Struct* given, const Struct& defaults) {
  Struct result = defaults;
  if (given == nullptr) return result;
  require(given->size >= sizeof(size_t), "options: size is not set; call the init function first");
  std::memcpy(&result, given, std::min(given->size, sizeof(Struct)));
  return result;
}

template <typename Struct>
void give_known_part(Struct* to, Struct from) {
  require(to->size >= sizeof(size_t), "size is not set: expected sizeof of the struct");
  from.size = to->size;
  std::memcpy(to, &from, std::min(to->size, sizeof(Struct)));
}

synod_load_options default_load_options() {
  synod_load_options options{};
  options.size = sizeof(options);
  options.backend = "auto";
  return options;
}

synod_generate_options default_generate_options() {
  const api::GenerateOptions defaults;
  synod_generate_options options{};
  options.size = sizeof(options);
  options.max_tokens = defaults.max_tokens;
  options.temperature = defaults.temperature;
  options.top_k = defaults.top_k;
  options.top_p = defaults.top_p;
  options.min_p = defaults.min_p;
  options.repetition_penalty = defaults.repetition_penalty;
  options.seed = -1;
  options.reasoning_budget = defaults.reasoning_budget;
  return options;
}

api::GenerateOptions generate_options(const synod_generate_options* given) {
  const synod_generate_options c = known_part(given, default_generate_options());
  api::GenerateOptions options;
  options.max_tokens = c.max_tokens;
  options.temperature = c.temperature;
  options.top_k = c.top_k;
  options.top_p = c.top_p;
  options.min_p = c.min_p;
  options.repetition_penalty = c.repetition_penalty;
  if (c.seed >= 0) options.seed = static_cast<uint64_t>(c.seed);
  options.reasoning = c.reasoning != 0;
  options.reasoning_budget = c.reasoning_budget;
  require(c.n_stop == 0 || c.stop != nullptr, "stop is NULL, but n_stop is not 0");
  for (size_t i = 0; i < c.n_stop; ++i) {
    require(c.stop[i] != nullptr, "a stop string is NULL");
    options.stop.emplace_back(c.stop[i]);
  }
  return options;
}

synod_channel channel_of(api::Channel channel) {
  switch (channel) {
    case api::Channel::kReasoning:
      return SYNOD_REASONING;
    case api::Channel::kToolCall:
      return SYNOD_TOOL_CALL;
    case api::Channel::kContent:
      break;
  }
  return SYNOD_CONTENT;
}

}  // namespace

extern "C" {

const char* synod_version(void) { return api::version(); }
const char* synod_last_error(void) { return last_error.c_str(); }

void synod_load_options_init(synod_load_options* options) {
  if (options != nullptr) *options = default_load_options();
}

void synod_generate_options_init(synod_generate_options* options) {
  if (options != nullptr) *options = default_generate_options();
}

synod_status synod_model_load(const char* path, const synod_load_options* options, synod_model** model) {
  return guarded([&] {
    require(path != nullptr && model != nullptr, "path and model must not be NULL");
    *model = nullptr;
    const synod_load_options c = known_part(options, default_load_options());
    api::LoadOptions load;
    load.path = path;
    if (c.backend != nullptr) load.backend = c.backend;
    load.n_threads = c.n_threads;
    load.context_length = c.context_length;
    load.cache_bytes = c.cache_bytes;
    if (c.cache_dir != nullptr) load.cache_dir = c.cache_dir;
    load.force = c.force != 0;
    if (c.plugin_dir != nullptr) load.plugin_dir = c.plugin_dir;
    if (c.progress != nullptr) {
      load.progress = [&c](int64_t done, int64_t total) {
        return c.progress(c.progress_user, done, total) != 0;
      };
    }
    *model = new synod_model{api::Model::load(load), {}, {}};
  });
}

void synod_model_free(synod_model* model) { delete model; }

synod_status synod_model_get_info(synod_model* model, synod_model_info* info) {
  return guarded([&] {
    require(model != nullptr && info != nullptr, "model and info must not be NULL");
    const api::ModelInfo i = model->model.info();
    const api::MemoryPlan plan = model->model.memory_plan();
    model->architecture = i.architecture;
    model->name = i.name;
    synod_model_info result{};
    result.architecture = model->architecture.c_str();
    result.name = model->name.c_str();
    result.n_layers = i.n_layers;
    result.d_model = i.d_model;
    result.vocab_size = i.vocab_size;
    result.n_experts = i.n_experts;
    result.n_experts_used = i.n_experts_used;
    result.context_length = i.context_length;
    result.weight_bytes = i.weight_bytes;
    result.planned_bytes = plan.weight_bytes + plan.cache_bytes + plan.scratch_bytes;
    give_known_part(info, result);
  });
}

synod_status synod_model_tokenize(synod_model* model, const char* text, int32_t* ids, size_t capacity,
                                  size_t* n) {
  return guarded([&] {
    require(model != nullptr && text != nullptr && n != nullptr, "model, text and n must not be NULL");
    require(ids != nullptr || capacity == 0, "ids is NULL, but capacity is not 0");
    const std::vector<int32_t> all = model->model.tokenize(text);
    *n = all.size();
    std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
    require(all.size() <= capacity, "the ids do not fit in the capacity given");
  });
}

synod_status synod_session_new(synod_model* model, const char* system_prompt, synod_session** session) {
  return guarded([&] {
    require(model != nullptr && session != nullptr, "model and session must not be NULL");
    *session = nullptr;
    *session = new synod_session{model->model.session(system_prompt == nullptr ? "" : system_prompt), {}};
  });
}

void synod_session_free(synod_session* session) { delete session; }

synod_status synod_session_send(synod_session* session, const char* message,
                                const synod_generate_options* options, synod_piece_callback on_piece,
                                void* user, synod_reply* reply) {
  return guarded([&] {
    require(session != nullptr && message != nullptr, "session and message must not be NULL");
    api::PieceCallback callback;
    if (on_piece != nullptr) {
      callback = [&](const api::Piece& piece) {
        return on_piece(user, channel_of(piece.channel), piece.text.data(), piece.text.size()) != 0;
      };
    }
    session->reply = session->session.send(message, generate_options(options), callback);
    if (reply == nullptr) return;
    const api::Reply& r = session->reply;
    synod_reply result{};
    result.content = r.content.c_str();
    result.reasoning = r.reasoning.c_str();
    result.finish = r.finish == api::Finish::kStop
                        ? SYNOD_STOP
                        : (r.finish == api::Finish::kLength ? SYNOD_LENGTH : SYNOD_CANCELLED);
    result.prompt_tokens = r.prompt_tokens;
    result.cached_tokens = r.cached_tokens;
    result.completion_tokens = r.completion_tokens;
    result.prompt_seconds = r.prompt_seconds;
    result.decode_seconds = r.decode_seconds;
    result.n_tool_calls = r.tool_calls.size();
    give_known_part(reply, result);
  });
}

synod_status synod_session_tool_call(synod_session* session, size_t index, const char** name,
                                     const char** arguments) {
  return guarded([&] {
    require(session != nullptr && name != nullptr && arguments != nullptr,
            "session, name and arguments must not be NULL");
    require(index < session->reply.tool_calls.size(), "the last reply has fewer tool calls");
    *name = session->reply.tool_calls[index].name.c_str();
    *arguments = session->reply.tool_calls[index].arguments.c_str();
  });
}

void synod_session_cancel(synod_session* session) {
  if (session != nullptr) session->session.cancel();
}

synod_status synod_session_save(synod_session* session, const char* path) {
  return guarded([&] {
    require(session != nullptr && path != nullptr, "session and path must not be NULL");
    session->session.save(path);
  });
}

synod_status synod_session_restore(synod_session* session, const char* path) {
  return guarded([&] {
    require(session != nullptr && path != nullptr, "session and path must not be NULL");
    session->session.restore(path);
  });
}

}  // extern "C"
