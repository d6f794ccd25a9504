#include "text/grammar/stack_pool.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"

namespace synod {

using Edge = GrammarAutomaton::Edge;
using EdgeKind = GrammarAutomaton::EdgeKind;
using Config = StackPool::Config;

StackPool::StackPool(const GrammarAutomaton& automaton, uint32_t max_depth)
    : automaton_(automaton), max_depth_(max_depth) {
  clear();
}

void StackPool::clear() {
  states_.clear();
  below_.clear();
  nodes_.clear();
  config_keys_.clear();
  node_depth_.assign(1, 0);
  below_depth_.clear();
  items_.clear();
  configs_.clear();
  rows_.clear();
  unions_.clear();
  // Node 0 is the bottom; its key can be no other node's, whose states are never this many.
  key_ = {UINT32_MAX};
  nodes_.intern(key_);
  scratch_ = {kBottomNode};
  below_of(scratch_);
  active_.clear();
  returned_ = false;
  pushed_depth_ = 0;
  const Config dead = intern_config();
  SYNOD_ASSERT(dead == kDead);
}

size_t StackPool::bytes() const {
  return states_.bytes() + below_.bytes() + nodes_.bytes() + config_keys_.bytes() + node_depth_.size() * 4 +
         below_depth_.size() * 4 + items_.size() * sizeof(Item) + configs_.size() * sizeof(ConfigData) +
         rows_.size() * sizeof(Config) + unions_.size() * 48;
}

void StackPool::add_work(uint64_t n) {
  work_ += n;
  if (work_ > kMaxWork) {
    fail(Error::Kind::kUsage,
         "grammar: too ambiguous: one token needs more than {} steps; simplify the grammar", kMaxWork);
  }
}

StackPool::Below StackPool::below_of(std::vector<uint32_t>& nodes) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const Below id = below_.intern(nodes);
  if (id == below_depth_.size()) {
    uint32_t depth = 0;
    for (const uint32_t node : nodes) depth = std::max(depth, node_depth_[node]);
    below_depth_.push_back(depth);
  }
  return id;
}

uint32_t StackPool::depth_of(Below below) { return below_depth_[below]; }

void StackPool::seed(uint32_t state, Below below) {
  if (seen_.insert(uint64_t(state) << 32 | below)) work_list_.push_back({state, below});
}

void StackPool::expand(Pair pair) {
  bool reads = false;
  const auto edges = automaton_.edges_of(pair.state);
  add_work(1 + edges.size());
  for (const Edge& edge : edges) {
    if (edge.kind == EdgeKind::kEmpty) {
      seed(edge.target, pair.below);
    } else if (edge.kind == EdgeKind::kCall) {
      calls_.push_back({edge.argument, edge.target, pair.below});
    } else {
      reads = true;
    }
  }
  if (reads) active_.push_back(pair);
  if (!automaton_.is_end[pair.state]) return;
  const size_t n_nodes = below_.at(pair.below).size();
  for (size_t i = 0; i < n_nodes; ++i) {
    const uint32_t node = below_.at(pair.below)[i];
    if (node == kBottomNode) {
      returned_ = true;
      continue;
    }
    // A node's key: its nodes below, then its states.
    const auto key = nodes_.at(node);
    for (const uint32_t state : states_.at(key[1])) seed(state, key[0]);
  }
}

// All calls of one rule share its frame: below it lie the nodes of all callers. A tail call leaves no node.
void StackPool::push_calls() {
  std::vector<Call> calls;
  calls.swap(calls_);
  std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
    return a.rule != b.rule ? a.rule < b.rule : a.below != b.below ? a.below < b.below : a.target < b.target;
  });
  for (size_t i = 0; i < calls.size();) {
    const uint32_t rule = calls[i].rule;
    std::vector<uint32_t> nodes;
    while (i < calls.size() && calls[i].rule == rule) {
      const Below below = calls[i].below;
      std::vector<uint32_t> targets;
      for (; i < calls.size() && calls[i].rule == rule && calls[i].below == below; ++i) {
        if (automaton_.only_returns[calls[i].target]) {
          const auto under = below_.at(below);
          nodes.insert(nodes.end(), under.begin(), under.end());
          add_work(under.size());
        } else if (targets.empty() || targets.back() != calls[i].target) {
          targets.push_back(calls[i].target);
        }
      }
      if (targets.empty()) continue;
      const uint32_t depth = depth_of(below) + 1;
      if (depth > max_depth_) continue;
      pushed_depth_ = std::max(pushed_depth_, depth);
      key_ = {below, states_.intern(targets)};
      const uint32_t node = nodes_.intern(key_);
      if (node == node_depth_.size()) node_depth_.push_back(depth);
      nodes.push_back(node);
    }
    if (!nodes.empty()) seed(automaton_.rules[rule].start, below_of(nodes));
  }
}

Config StackPool::close(std::span<const Pair> kernel) {
  for (const Pair pair : kernel) seed(pair.state, pair.below);
  return close();
}

Config StackPool::close() {
  kernel_ = work_list_;
  active_.clear();
  calls_.clear();
  returned_ = false;
  pushed_depth_ = 0;
  for (;;) {
    while (!work_list_.empty()) {
      const Pair pair = work_list_.back();
      work_list_.pop_back();
      expand(pair);
    }
    if (calls_.empty()) break;
    push_calls();
  }
  seen_.clear();
  return intern_config();
}

// Canonical form: each state once, with the union of what is below; then states with equal belows together.
void StackPool::group_by_below(std::vector<Pair>& pairs) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.state != b.state ? a.state < b.state : a.below < b.below;
  });
  size_t n = 0;
  for (size_t i = 0; i < pairs.size();) {
    const uint32_t state = pairs[i].state;
    Below below = pairs[i].below;
    size_t j = i + 1;
    while (j < pairs.size() && pairs[j].state == state) ++j;
    if (j > i + 1) {
      scratch_.clear();
      for (; i < j; ++i) {
        const auto under = below_.at(pairs[i].below);
        scratch_.insert(scratch_.end(), under.begin(), under.end());
      }
      add_work(scratch_.size());
      below = below_of(scratch_);
    }
    pairs[n++] = {state, below};
    i = j;
  }
  pairs.resize(n);
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return a.below != b.below ? a.below < b.below : a.state < b.state;
  });
}

Config StackPool::intern_config() {
  group_by_below(active_);
  key_.assign(1, returned_);
  uint32_t depth = pushed_depth_;
  for (size_t i = 0; i < active_.size();) {
    scratch_.clear();
    const Below below = active_[i].below;
    for (; i < active_.size() && active_[i].below == below; ++i) scratch_.push_back(active_[i].state);
    key_.push_back(states_.intern(scratch_));
    key_.push_back(below);
    depth = std::max(depth, depth_of(below));
  }
  const Config id = config_keys_.intern(key_);
  if (id == configs_.size()) {
    const auto first = uint32_t(items_.size());
    for (size_t i = 1; i < key_.size(); i += 2) items_.push_back({key_[i], key_[i + 1]});
    configs_.push_back({first, uint32_t(items_.size()) - first, depth, kNoRow, kUnknown, returned_});
  }
  configs_[id].depth = std::max(configs_[id].depth, depth);
  return id;
}

std::span<const StackPool::Item> StackPool::items(Config config) const {
  const ConfigData& data = configs_[config];
  return {items_.data() + data.first_item, data.n_items};
}

Config StackPool::start(std::span<const uint32_t> states) {
  for (const uint32_t state : states) seed(state, 0);
  return close();
}

Config StackPool::step_once(Config from, uint8_t byte) {
  const ConfigData data = configs_[from];
  for (uint32_t i = 0; i < data.n_items; ++i) {
    const Item item = items_[data.first_item + i];
    for (const uint32_t state : states_.at(item.states)) {
      const auto edges = automaton_.edges_of(state);
      add_work(edges.size());
      for (const Edge& edge : edges) {
        if (edge.kind == EdgeKind::kBytes && edge.low <= byte && byte <= edge.high)
          seed(edge.target, item.below);
      }
    }
  }
  return work_list_.empty() ? kDead : close();
}

Config StackPool::step(Config from, uint8_t byte) {
  if (configs_[from].n_items == 0) return kDead;
  const size_t n_classes = automaton_.n_classes();
  if (configs_[from].row == kNoRow) {
    configs_[from].row = uint32_t(rows_.size() / n_classes);
    rows_.resize(rows_.size() + n_classes, kUnknown);
  }
  const size_t cell = configs_[from].row * n_classes + automaton_.byte_class[byte];
  if (rows_[cell] == kUnknown) {
    const Config to = step_once(from, byte);
    rows_[cell] = to;
  }
  return rows_[cell];
}

Config StackPool::step_token(Config from, int32_t id, bool is_text, bool is_stop) {
  const ConfigData data = configs_[from];
  for (uint32_t i = 0; i < data.n_items; ++i) {
    const Item item = items_[data.first_item + i];
    for (const uint32_t state : states_.at(item.states)) {
      for (const Edge& edge : automaton_.edges_of(state)) {
        bool taken = false;
        if (edge.kind == EdgeKind::kToken) {
          taken = edge.argument == uint32_t(id);
        } else if (edge.kind == EdgeKind::kTextTokenExcept || edge.kind == EdgeKind::kControlExcept) {
          const auto& except = automaton_.token_sets[edge.argument];
          const bool kind_fits = edge.kind == EdgeKind::kTextTokenExcept ? is_text : !is_text && !is_stop;
          taken = kind_fits && !std::binary_search(except.begin(), except.end(), id);
        }
        if (taken) seed(edge.target, item.below);
      }
    }
  }
  return work_list_.empty() ? kDead : close();
}

Config StackPool::unite(Config a, Config b) {
  if (a == b || b == kDead) return a;
  if (a == kDead) return b;
  if (a > b) std::swap(a, b);
  const auto [entry, added] = unions_.try_emplace(uint64_t(a) << 32 | b, kDead);
  if (!added) return entry->second;
  active_.clear();
  returned_ = configs_[a].returns || configs_[b].returns;
  pushed_depth_ = 0;
  for (const Config config : {a, b}) {
    for (const Item& item : items(config)) {
      for (const uint32_t state : states_.at(item.states)) active_.push_back({state, item.below});
    }
  }
  add_work(active_.size());
  return entry->second = intern_config();
}

std::optional<uint8_t> StackPool::only_byte(Config config) const {
  std::optional<uint8_t> only;
  for (const Item& item : items(config)) {
    for (const uint32_t state : states_.at(item.states)) {
      for (const Edge& edge : automaton_.edges_of(state)) {
        if (edge.kind == EdgeKind::kEmpty || edge.kind == EdgeKind::kCall) continue;
        if (edge.kind != EdgeKind::kBytes || edge.low != edge.high) return std::nullopt;
        if (only && *only != edge.low) return std::nullopt;
        only = edge.low;
      }
    }
  }
  return returns(config) ? std::nullopt : only;
}

namespace {

using Range = std::pair<uint8_t, uint8_t>;
// Well-formed UTF-8 beyond ASCII by first byte (Unicode standard, table 3-7).
struct Utf8Form {
  std::array<Range, 4> bytes;
  size_t length;
};
constexpr Range kTail{0x80, 0xBF};
constexpr Utf8Form kWideForms[] = {
    {{Range{0xC2, 0xDF}, kTail}, 2},
    {{Range{0xE0, 0xE0}, Range{0xA0, 0xBF}, kTail}, 3},
    {{Range{0xE1, 0xEC}, kTail, kTail}, 3},
    {{Range{0xED, 0xED}, Range{0x80, 0x9F}, kTail}, 3},
    {{Range{0xEE, 0xEF}, kTail, kTail}, 3},
    {{Range{0xF0, 0xF0}, Range{0x90, 0xBF}, kTail, kTail}, 4},
    {{Range{0xF1, 0xF3}, kTail, kTail, kTail}, 4},
    {{Range{0xF4, 0xF4}, Range{0x80, 0x8F}, kTail, kTail}, 4},
};
constexpr Range kPlainAscii[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}};

}  // namespace

// Where all byte strings of `ranges` lead from `from`, or kMixed.
Config StackPool::plain_tail(Config from, std::span<const Range> ranges) {
  if (ranges.empty() || from == kDead) return from;
  Config common = kUnknown;
  Config previous = kUnknown;  // neighbours often lead to the same place: ask below once
  for (unsigned byte = ranges[0].first; byte <= ranges[0].second; ++byte) {
    const Config next = step(from, uint8_t(byte));
    if (next == previous) continue;
    previous = next;
    if (returns(next)) return kMixed;
    const Config reached = plain_tail(next, ranges.subspan(1));
    if (reached == kMixed || (common != kUnknown && reached != common)) return kMixed;
    common = reached;
  }
  return common;
}

Config StackPool::plain_step(Config from) {
  if (from == kDead) return kDead;
  if (configs_[from].plain != kUnknown) return configs_[from].plain;
  Config common = kUnknown;
  const auto merge = [&common](Config reached) {
    if (common == kUnknown) common = reached;
    if (common != reached) common = kMixed;
    return common != kMixed;
  };
  bool same = true;
  for (const Range& range : kPlainAscii) {
    same = same && merge(plain_tail(from, std::span(&range, 1)));
  }
  for (const Utf8Form& form : kWideForms) {
    if (!same) break;
    same = merge(plain_tail(from, std::span(form.bytes).first(form.length)));
  }
  configs_[from].plain = common;
  return common;
}

Config StackPool::import(const StackGraph& graph) {
  std::vector<uint32_t> node_of(graph.frames.size());
  const auto below = [&](const StackGraph::Frame& frame) {
    scratch_.clear();
    for (const uint32_t index : frame.below) {
      scratch_.push_back(index == StackGraph::kBottom ? kBottomNode : node_of[index]);
    }
    return below_of(scratch_);
  };
  for (size_t i = 0; i < graph.frames.size(); ++i) {
    const Below under = below(graph.frames[i]);
    key_ = {under, states_.intern(graph.frames[i].states)};
    node_of[i] = nodes_.intern(key_);
    if (node_of[i] == node_depth_.size()) node_depth_.push_back(depth_of(under) + 1);
  }
  for (const StackGraph::Frame& top : graph.tops) {
    const Below under = below(top);
    for (const uint32_t state : top.states) seed(state, under);
  }
  return close();
}

StackGraph StackPool::export_kernel(bool complete) {
  std::vector<Pair> kernel = kernel_;
  group_by_below(kernel);
  // Nodes are numbered after those below them, so ascending order is a bottom-up order.
  std::map<uint32_t, uint32_t> index_of;
  std::vector<uint32_t> stack;
  const auto visit = [&](Below set) {
    for (const uint32_t node : below_.at(set)) {
      if (node != kBottomNode && index_of.try_emplace(node, 0).second) stack.push_back(node);
    }
  };
  for (const Pair pair : kernel) visit(pair.below);
  while (!stack.empty()) {
    const uint32_t node = stack.back();
    stack.pop_back();
    visit(nodes_.at(node)[0]);
  }
  StackGraph graph;
  graph.complete = complete;
  const auto frame_of = [&](std::span<const uint32_t> states, Below set) {
    StackGraph::Frame frame;
    frame.states.assign(states.begin(), states.end());
    for (const uint32_t node : below_.at(set)) {
      frame.below.push_back(node == kBottomNode ? StackGraph::kBottom : index_of.at(node));
    }
    frame.depth = below_depth_[set];
    return frame;
  };
  for (auto& [node, index] : index_of) {
    index = uint32_t(graph.frames.size());
    const auto key = nodes_.at(node);
    graph.frames.push_back(frame_of(states_.at(key[1]), key[0]));
  }
  for (size_t i = 0; i < kernel.size();) {
    const Below below = kernel[i].below;
    std::vector<uint32_t> states;
    for (; i < kernel.size() && kernel[i].below == below; ++i) states.push_back(kernel[i].state);
    graph.tops.push_back(frame_of(states, below));
  }
  return graph;
}

}  // namespace synod
