// Where a pushdown automaton can be, as interned numbers. A node is a suspended frame: the states it may go
// on from and the nodes below it. A configuration is a set of (states, nodes below), each state listed once,
// with everything that costs no byte already done (calls made, returns taken). Equal configurations have
// equal numbers, so that stepping is remembered. Memory only grows; owners watch bytes() and clear().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/span_interner.h"

namespace synod {

// A configuration on its own, immutable: what a GrammarState holds. Only the kernel is kept: what the last
// byte led to, before calls and returns, which follow from it.
struct StackGraph {
  static constexpr uint32_t kBottom = UINT32_MAX;
  struct Frame {
    std::vector<uint32_t> states;  // sorted
    std::vector<uint32_t> below;   // indices of earlier frames, or kBottom
    uint32_t depth = 0;            // frames on the longest way to the bottom
  };
  std::vector<Frame> frames;  // suspended; those below come first
  std::vector<Frame> tops;    // the kernel
  bool complete = false;      // the whole grammar may end here
};

class StackPool {
 public:
  using Config = uint32_t;
  using States = uint32_t;  // an interned sorted set of states
  using Below = uint32_t;   // an interned sorted set of nodes
  static constexpr Config kDead = 0;
  static constexpr uint32_t kBottomNode = 0;
  static constexpr uint32_t kMaxDepth = 1024;       // frames of a text; deeper alternatives are not allowed
  static constexpr uint64_t kMaxWork = 50'000'000;  // elementary steps between two reset_work()

  // `max_depth` also bounds the frames above an unknown bottom.
  explicit StackPool(const GrammarAutomaton& automaton, uint32_t max_depth = kMaxDepth);

  struct Item {
    States states;
    Below below;
  };
  // The closure of raw `states` on the bottom.
  Config start(std::span<const uint32_t> states);
  Config step(Config from, uint8_t byte);                                  // remembered
  Config step_once(Config from, uint8_t byte);                             // not remembered
  Config step_token(Config from, int32_t id, bool is_text, bool is_stop);  // not remembered
  Config unite(Config a, Config b);

  // What the last closure (start, step_once, step_token, import) began with.
  struct Pair {
    uint32_t state;
    Below below;
  };
  const std::vector<Pair>& kernel() const { return kernel_; }
  Config close(std::span<const Pair> kernel);

  std::span<const Item> items(Config config) const;
  bool returns(Config config) const { return configs_[config].returns; }  // the bottom was reached
  bool is_dead(Config config) const { return config == kDead; }
  bool has_items(Config config) const { return configs_[config].n_items > 0; }
  // Deepest stack above the bottom, in the configuration or on the way to it.
  uint32_t growth(Config config) const { return configs_[config].depth; }
  std::span<const uint32_t> states(States set) const { return states_.at(set); }

  // The one byte that can follow, if there is only one and nothing else can.
  std::optional<uint8_t> only_byte(Config config) const;
  // Where every plain character leads (see Vocabulary), if they all lead to the same place without returning;
  // kMixed otherwise. kDead when none is accepted.
  static constexpr Config kMixed = UINT32_MAX;
  Config plain_step(Config from);

  Config import(const StackGraph& graph);
  StackGraph export_kernel(bool complete);

  void reset_work() { work_ = 0; }
  size_t bytes() const;
  void clear();

 private:
  struct ConfigData {
    uint32_t first_item, n_items;
    uint32_t depth;
    uint32_t row;  // of rows_, kNoRow
    Config plain;  // kUnknown
    bool returns;
  };
  static constexpr uint32_t kNoRow = UINT32_MAX;
  static constexpr Config kUnknown = UINT32_MAX - 1;

  void seed(uint32_t state, Below below);
  Config close();  // of the seeded pairs
  void group_by_below(std::vector<Pair>& pairs);
  void expand(Pair pair);
  void push_calls();
  Config intern_config();
  Below below_of(std::vector<uint32_t>& nodes);  // sorts
  uint32_t depth_of(Below below);
  Config plain_tail(Config from, std::span<const std::pair<uint8_t, uint8_t>> ranges);
  void add_work(uint64_t n);

  const GrammarAutomaton& automaton_;
  uint32_t max_depth_;
  uint64_t work_ = 0;

  SpanInterner states_, below_, nodes_, config_keys_;
  std::vector<uint32_t> node_depth_;   // by node; frames from it to the bottom, itself included
  std::vector<uint32_t> below_depth_;  // by Below
  std::vector<Item> items_;
  std::vector<ConfigData> configs_;
  std::vector<Config> rows_;  // n_classes per row
  std::unordered_map<uint64_t, Config> unions_;

  // Of the closure under way.
  struct Call {
    uint32_t rule, target;
    Below below;
  };
  std::vector<Pair> work_list_, active_, kernel_;
  std::vector<Call> calls_;
  KeySet seen_;
  bool returned_ = false;
  uint32_t pushed_depth_ = 0;
  std::vector<uint32_t> scratch_, key_;
};

}  // namespace synod
