// What the verbs do. Each writes its result to stdout, its log to stderr, and throws Error.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "formats/checkpoint.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod::cli {

int run_verb(const Options& options);
int bench_verb(const Options& options);
int logits_verb(const Options& options);
int tokenize_verb(const Options& options);
int inspect_verb(const Options& options);
int convert_verb(const Options& options);
int quantize_verb(const Options& options);
int imatrix_verb(const Options& options);
int perplexity_verb(const Options& options);
int serve_verb(const Options& options);
int chat_verb(const Options& options);
int config_verb(const Options& options);
int doctor_verb(const Options& options);

// Set by SIGINT and SIGTERM; generation ends after the current token.
extern std::atomic<int> g_signal;

// The MODEL option, or the bundled demonstration model: beside the program, under share/synod/models, or in
// the source tree. Throws kNotFound listing where it looked.
std::filesystem::path model_path(const Options& options);

// "auto" takes the fastest backend of this build. Throws kUsage for one that is not in it.
std::unique_ptr<Backend> make_backend(const Options& options);

// -p, -f or stdin. Throws kUsage when two are given.
std::string read_prompt(const Options& options);

// Ids separated by commas or white space. Throws kUsage naming the word that is not one.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& what);

// The kernels that experts take for one token and for a whole chunk, as one line.
std::string describe_routes(const Model& model, std::string_view device, const Options& options);

// A loaded model ready to run: memory planned and checked, weights bound, fusion logged.
struct LoadedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  std::unique_ptr<Backend> backend;
};
LoadedModel load(const Options& options);

}  // namespace synod::cli
