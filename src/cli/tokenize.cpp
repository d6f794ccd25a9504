#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"

namespace synod::cli {

int tokenize_verb(const Options& options) {
  const Checkpoint checkpoint = Checkpoint::open(model_path(options));
  const Tokenizer tokenizer = load_tokenizer(checkpoint);
  if (options.decode) {
    const std::vector<int32_t> ids =
        parse_ids(options.ids.empty() ? read_prompt(options) : options.ids, "--decode");
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) {
        fail(Error::Kind::kUsage, "token id {} is outside the vocabulary of {}", id, tokenizer.vocab_size());
      }
    }
    const std::string text = tokenizer.decode(ids);
    if (options.json) {
      std::printf("%s\n", nlohmann::ordered_json{{"schema_version", 1}, {"text", text}}.dump().c_str());
    } else {
      std::printf("%s\n", text.c_str());
    }
    return 0;
  }
  const std::vector<int32_t> ids = tokenizer.encode(read_prompt(options), options.parse_special);
  if (options.json) {
    nlohmann::ordered_json pieces = nlohmann::json::array();
    for (const int32_t id : ids) pieces.push_back(std::string(tokenizer.bytes_of(id)));
    const nlohmann::ordered_json object = {{"schema_version", 1}, {"ids", ids}, {"pieces", pieces}};
    std::printf("%s\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::string line;
    for (const int32_t id : ids) line += (line.empty() ? "" : ",") + std::to_string(id);
    std::printf("%s\n", line.c_str());
  }
  return 0;
}

}  // namespace synod::cli
