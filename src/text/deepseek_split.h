// DeepSeek's pre-tokenization: three splits by Unicode class, each applied to the pieces left by the one
// before.
#pragma once

#include <string_view>
#include <vector>

namespace synod {

// Cuts `text` (< 2^31 bytes) into pieces that BPE must not merge across. Their concatenation is `text`; bytes
// that are not UTF-8 count as one unassigned character each. Linear time.
std::vector<std::string_view> split_deepseek(std::string_view text);

}  // namespace synod
