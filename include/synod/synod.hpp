// synod as a library: load a model, hold conversations, receive text by channel as it is written.
//
//   synod::api::Model model = synod::api::Model::load({.path = "gemma4.gguf"});
//   synod::api::Session session = model.session();
//   session.send("Why is the sky blue?", {}, [](const synod::api::Piece& piece) {
//     if (piece.channel == synod::api::Channel::kContent) std::cout << piece.text << std::flush;
//     return true;
//   });
//
// Nothing in here reads the environment, prints, or ends the process. Failures are thrown as Error. Objects
// may be moved; a Model is shared by its sessions and lives until the last of them is gone. One session is
// used by one thread at a time (cancel() by any); sessions of one model run together in one batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace synod::api {

enum class ErrorKind {
  kFailure = 1,   // anything else
  kUsage = 2,     // a bad argument
  kBadFile = 3,   // a file that is damaged or not supported
  kNoMemory = 4,  // does not fit in memory
  kNotFound = 5,  // no such file
  kBusy = 6,      // too many requests are waiting
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

struct ModelInfo {
  std::string architecture;  // "gemma4", "deepseek4"
  std::string name;
  int64_t n_layers = 0, d_model = 0, vocab_size = 0;
  int64_t n_experts = 0, n_experts_used = 0;  // 0 without experts
  int64_t context_length = 0;                 // tokens
  int64_t weight_bytes = 0;                   // as stored
};

struct MemoryPlan {
  int64_t context_length = 0;  // tokens it was made for
  int64_t weight_bytes = 0, cache_bytes = 0, scratch_bytes = 0;
  int64_t available_bytes = 0;  // what this process may still take
  bool fits() const { return weight_bytes + cache_bytes + scratch_bytes <= available_bytes; }
};

struct LoadOptions {
  std::string path;              // .gguf file, or folder with safetensors
  std::string backend = "auto";  // "auto" (the fastest that works here), "cuda", "cpu", "ref"
  int n_threads = 0;             // of the CPU; 0 = physical cores
  int64_t context_length = 0;    // tokens per session; 0 = the model's
  int64_t cache_bytes = 0;       // of all sessions; 0 = what one full context needs, at least 256 MiB
  int64_t max_sessions = 32;     // that run at once; more wait
  std::string cache_dir;         // keeps prefixes on disk; "" = none
  std::string plugin_dir;        // where the CUDA plugin lies; "" = beside the program or in its ../lib
  bool force = false;            // load even when the memory plan does not fit
  // Called with bytes read so far and all bytes while the file is brought into memory; false ends the loading
  // with kFailure.
  std::function<bool(int64_t done, int64_t total)> progress;
};

enum class Channel { kContent, kReasoning, kToolCall };

// A piece of streamed text. For tool calls `text` is a part of the arguments, which together are a JSON
// object; the first piece of a call carries its name.
struct Piece {
  Channel channel = Channel::kContent;
  std::string_view text;
  int tool_call = -1;          // index of the call
  std::string_view tool_name;  // in the first piece of a call
};
// Called on the thread of send(). False cancels.
using PieceCallback = std::function<bool(const Piece&)>;

struct GenerateOptions {
  int64_t max_tokens = -1;  // -1 = until the end of the turn
  float temperature = 0.0F;
  int64_t top_k = 0;
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  std::optional<uint64_t> seed;   // none = a new one each time
  std::vector<std::string> stop;  // strings that end the text
  bool reasoning = false;
  int64_t reasoning_budget = -1;  // tokens; -1 = no bound
};

enum class Finish { kStop, kLength, kCancelled };

struct ToolCall {
  std::string name;
  std::string arguments;  // text of a JSON object
};

struct Reply {
  std::string content, reasoning;
  std::vector<ToolCall> tool_calls;
  Finish finish = Finish::kStop;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double prompt_seconds = 0.0, decode_seconds = 0.0;
};

struct Tool {
  std::string name, description;
  std::string parameters;  // JSON Schema, text of an object
};

class Session;

class Model {
 public:
  // Memory is planned first: kNoMemory with numbers when it does not fit.
  static Model load(const LoadOptions& options);
  // The plan alone, without loading the weights' bytes.
  static MemoryPlan plan(const LoadOptions& options);

  ModelInfo info() const;
  MemoryPlan memory_plan() const;
  Session session(const std::string& system_prompt = {}) const;

  std::vector<int32_t> tokenize(std::string_view text, bool parse_special = false) const;
  std::string detokenize(const std::vector<int32_t>& ids) const;
  // Text continued as it stands, without a dialogue format.
  Reply complete(std::string_view prompt, const GenerateOptions& options = {},
                 const PieceCallback& on_piece = {}) const;

 private:
  friend class Session;
  struct Impl;
  explicit Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// A conversation. What it said stays in the model's prefix cache, so that a turn costs only its own tokens.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  void set_tools(std::vector<Tool> tools);
  // Adds a user message and generates the reply, which joins the conversation. When it throws the
  // conversation is as before.
  Reply send(std::string_view message, const GenerateOptions& options = {},
             const PieceCallback& on_piece = {});
  // Answers a tool call of the last reply; generate() then continues.
  void add_tool_result(std::string_view tool_name, std::string_view result);
  Reply generate(const GenerateOptions& options = {}, const PieceCallback& on_piece = {});
  // Ends the reply being generated, from any thread.
  void cancel();
  int64_t n_messages() const;

  // The conversation and its cache rows, as two files: `path` (JSON) and `path` + ".kv". restore() makes this
  // session the saved one; rows that are missing, damaged or of another model are computed again.
  void save(const std::string& path) const;
  void restore(const std::string& path);

 private:
  friend class Model;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

const char* version();

}  // namespace synod::api
