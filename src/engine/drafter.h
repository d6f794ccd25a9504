// Drafts: guesses of the next tokens that one forward call verifies together.
//
// The engine feeds the last token and k drafted ones as k + 1 rows, samples every row as if it stood alone,
// and keeps going while the sampled token is the drafted one. The first that differs is kept too: it is what
// plain decoding would have sampled there. So drafts change speed, never text, greedy or not. Rows after it
// are simply not committed (KvCache::commit), which is the whole rollback.
//
// A drafter sees the tokens of one choice. Other kinds (MTP heads, a draft model) fit the same two calls;
// they would keep their own cache rows and be told of every accepted token by extend().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace synod {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // `ids` are all tokens so far (prompt and output); called before draft() whenever they grew.
  virtual void extend(std::span<const int32_t> ids) = 0;
  // At most `most` guesses of what follows; empty when it has none.
  virtual std::vector<int32_t> draft(std::span<const int32_t> ids, int64_t most) = 0;
};

// Prompt look-up: what followed the last time that the text's last kOrder tokens appeared.
class NgramDrafter : public Drafter {
 public:
  static constexpr int64_t kOrder = 3;
  void extend(std::span<const int32_t> ids) override;
  std::vector<int32_t> draft(std::span<const int32_t> ids, int64_t most) override;

 private:
  size_t slot(const int32_t* gram) const;

  // slot of a gram's hash -> position after its latest occurrence; -1 = none. A collision loses the older
  // gram.
  std::vector<int32_t> next_;
  int64_t indexed_ = 0;  // positions up to here are in next_
};

}  // namespace synod
