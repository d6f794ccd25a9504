// A long text as token ids, for the verbs that run one in chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "formats/checkpoint.h"

namespace synod::cli {

struct TextIds {
  std::vector<int32_t> ids;  // BOS included where the tokenizer adds it
  int32_t bos = -1;          // replaces each chunk's first token; -1 = none
  std::string source;        // name of the file, or "stdin"
};

// -f or stdin. Throws kNotFound for a missing file, kUsage for an empty text.
TextIds read_text_ids(const Options& options, const Checkpoint& checkpoint);

}  // namespace synod::cli
