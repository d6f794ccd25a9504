#include "engine/imatrix.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/text_ids.h"
#include "cli/verbs.h"

namespace synod::cli {

int imatrix_verb(const Options& given) {
  constexpr int64_t kChunkTokens = 512;
  Options options = given;
  if (options.context_length == 0) options.context_length = kChunkTokens;
  // Files to merge are read first: a bad one should not be found out after an hour.
  std::vector<Imatrix> parts;
  for (const std::string& file : options.merge_files) parts.push_back(Imatrix::read(file));
  const LoadedModel loaded = load(options);
  const TextIds text = read_text_ids(options, *loaded.checkpoint);
  Imatrix result = collect_imatrix(*loaded.checkpoint, *loaded.model, *loaded.backend, text.ids, text.bos,
                                   {.chunk_tokens = options.context_length,
                                    .max_chunks = options.max_chunks,
                                    .process_output = options.process_output,
                                    .cancelled = [] { return g_signal != 0; }});
  if (g_signal != 0 && result.n_chunks == 0) return 128 + g_signal;
  result.datasets = {text.source};
  for (const Imatrix& part : parts) result.merge(part);
  result.write(options.output);
  int64_t n_unused = 0, n_experts = 0;
  for (const auto& [weight, entry] : result.entries) {
    if (entry.n_experts == 1) continue;
    n_experts += entry.n_experts;
    n_unused += std::ranges::count(entry.counts, 0.0);
  }
  if (n_unused > 0) {
    log_warning("{} of {} expert matrices were never used: give more or other text", n_unused, n_experts);
  }
  if (options.json) {
    const nlohmann::ordered_json object = {{"schema_version", 1},
                                           {"file", options.output},
                                           {"entries", result.entries.size()},
                                           {"chunks", result.n_chunks},
                                           {"chunk_size", result.chunk_tokens},
                                           {"unused_experts", n_unused}};
    std::printf("%s\n", object.dump().c_str());
  } else {
    log_info("wrote {}: {} entries from {} chunks of {} tokens", options.output, result.entries.size(),
             result.n_chunks, result.chunk_tokens);
  }
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
