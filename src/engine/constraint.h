// What restricts the choice of tokens, as the engine sees it. Grammars implement it; the engine knows no
// grammar. A factory is compiled once per grammar and shared by requests; each choice gets its own state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace synod {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // Bit (id & 31) of word (id / 32) is set when token `id` may come next: at least ceil(vocab_size / 32)
  // words, valid until the next call of accept. Stop ids are allowed exactly where the text may end. No bit
  // at all ends the text.
  virtual std::span<const uint32_t> allowed() = 0;
  // The token was chosen. False when it was not allowed; the state is then undefined and the text ends.
  virtual bool accept(int32_t id) = 0;
};

class ConstraintFactory {
 public:
  virtual ~ConstraintFactory() = default;
  // Called on the engine's thread, once per choice. Throws kUsage.
  virtual std::unique_ptr<Constraint> start() const = 0;
};

}  // namespace synod
