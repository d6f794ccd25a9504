#include "cli/text_ids.h"

#include <filesystem>

#include "base/buffer.h"
#include "cli/verbs.h"

namespace synod::cli {

TextIds read_text_ids(const Options& options, const Checkpoint& checkpoint) {
  constexpr int64_t kMaxBytes = int64_t{4} << 30;
  const Tokenizer tokenizer = load_tokenizer(checkpoint);
  TextIds result;
  const bool from_file = !options.prompt_file.empty();
  result.source = from_file ? std::filesystem::path(options.prompt_file).filename().string() : "stdin";
  const std::string text = from_file ? read_text_file(options.prompt_file, kMaxBytes) : read_prompt(options);
  if (text.empty()) fail(Error::Kind::kUsage, "{}: the text is empty", result.source);
  const TokenizerData& data = tokenizer.data();
  if (data.add_bos && data.bos) {
    result.bos = *data.bos;
    result.ids.push_back(*data.bos);
  }
  const std::vector<int32_t> ids = tokenizer.encode(text, options.parse_special);
  result.ids.insert(result.ids.end(), ids.begin(), ids.end());
  return result;
}

}  // namespace synod::cli
