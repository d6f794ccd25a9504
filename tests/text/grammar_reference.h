// A slow matcher for grammars that is easy to believe: a set of explicit stacks of terms, expanded term by
// term over the tree that the sources gave, one byte at a time. It knows nothing of automata, tries or
// caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/builder.h"
#include "text/grammar/terms.h"
#include "text/grammar/vocabulary.h"

namespace synod::grammar_testing {

class ReferenceMatcher {
 public:
  ReferenceMatcher(const TermTree& tree, Term root) : tree_(&tree), productive_(tree.nodes.size(), false) {
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t i = 0; i < tree.nodes.size(); ++i) {
        if (!productive_[i] && is_productive(i)) productive_[i] = changed = true;
      }
    }
    expand({{root.index, 0, 0, {}}}, stacks_);
  }

  size_t n_stacks() const { return stacks_.size(); }
  bool alive() const { return !stacks_.empty(); }
  bool complete() const { return stacks_.contains({}); }

  bool step(uint8_t byte) {
    Stacks next;
    for (const Stack& stack : stacks_) {
      if (stack.empty()) continue;
      const Entry top = stack.back();
      Stack rest(stack.begin(), stack.end() - 1);
      const TermTree::Node& node = tree_->at(Term{top.term});
      if (node.kind == TermTree::Kind::kBytes) {
        if (node.a <= byte && byte <= node.b) expand(std::move(rest), next);
      } else if (node.kind == TermTree::Kind::kText || node.kind == TermTree::Kind::kTexts) {
        // top.bytes: what is left of the text.
        if (uint8_t(top.bytes[0]) != byte) continue;
        if (top.bytes.size() > 1) rest.push_back({top.term, 0, 0, top.bytes.substr(1)});
        expand(std::move(rest), next);
      } else if (node.kind == TermTree::Kind::kCharacters) {
        // top.bytes: the character so far.
        const std::string bytes = top.bytes + char(byte);
        const int verdict = character(tree_->range_sets[node.a], bytes);
        if (verdict == 0) continue;
        if (verdict == 1) rest.push_back({top.term, 0, 0, bytes});
        expand(std::move(rest), next);
      }
    }
    stacks_ = std::move(next);
    return alive();
  }

  // A token by its id and by its text.
  bool accept(int32_t id, const Vocabulary& vocabulary) {
    Stacks by_id;
    for (const Stack& stack : stacks_) {
      if (stack.empty()) continue;
      const TermTree::Node& node = tree_->at(Term{stack.back().term});
      bool taken = false;
      if (node.kind == TermTree::Kind::kToken) taken = int32_t(node.a) == id;
      const auto listed = [&] {
        const auto& set = tree_->token_sets[node.a];
        return std::find(set.begin(), set.end(), id) != set.end();
      };
      if (node.kind == TermTree::Kind::kTextTokenExcept) taken = vocabulary.is_text(id) && !listed();
      if (node.kind == TermTree::Kind::kControlExcept) {
        taken = !vocabulary.is_text(id) && !vocabulary.is_stop(id) && !listed();
      }
      if (taken) expand(Stack(stack.begin(), stack.end() - 1), by_id);
    }
    if (vocabulary.is_text(id)) {
      for (const char c : vocabulary.bytes_of(id)) step(uint8_t(c));
    } else {
      stacks_.clear();
    }
    stacks_.insert(by_id.begin(), by_id.end());
    return alive();
  }

 private:
  struct Entry {
    uint32_t term;
    uint32_t done, started;  // of a repetition: copies behind, 1 once begun
    std::string bytes;
    auto operator<=>(const Entry&) const = default;
  };
  using Stack = std::vector<Entry>;
  using Stacks = std::set<Stack>;

  bool is_productive(uint32_t i) const {
    const TermTree::Node& node = tree_->nodes[i];
    const auto good = [&](Term term) { return bool(productive_[term.index]); };
    switch (node.kind) {
      case TermTree::Kind::kNever:
        return false;
      case TermTree::Kind::kSequence:
        return std::all_of(tree_->lists[node.a].begin(), tree_->lists[node.a].end(), good);
      case TermTree::Kind::kChoice:
        return std::any_of(tree_->lists[node.a].begin(), tree_->lists[node.a].end(), good);
      case TermTree::Kind::kRepeat:
        return tree_->repeats[node.b].min == 0 || productive_[node.a];
      case TermTree::Kind::kRule:
        return productive_[tree_->rules[node.a].body.index];
      default:
        return true;
    }
  }

  // 0: not in the set, 1: could become one of the set, 2: is one of the set.
  static int character(const std::vector<CodePointRange>& set, const std::string& bytes) {
    const auto lead = uint8_t(bytes[0]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    if (length == 0) return 0;
    uint32_t low = length == 1 ? lead : length == 2 ? lead & 0x1F : length == 3 ? lead & 0x0F : lead & 0x07;
    uint32_t high = low;
    for (size_t i = 1; i < length; ++i) {
      if (i < bytes.size() && (uint8_t(bytes[i]) & 0xC0) != 0x80) return 0;
      low = low << 6 | (i < bytes.size() ? uint8_t(bytes[i]) & 0x3F : 0);
      high = high << 6 | (i < bytes.size() ? uint8_t(bytes[i]) & 0x3F : 0x3F);
    }
    constexpr uint32_t kShortest[] = {0, 0, 0x80, 0x800, 0x10000};
    low = std::max(low, kShortest[length]);
    high = std::min<uint32_t>(high, 0x10FFFF);
    for (const CodePointRange range : set) {
      if (std::max<uint32_t>(low, range.low) <= std::min<uint32_t>(high, range.high)) {
        return bytes.size() == length ? 2 : 1;
      }
    }
    return 0;
  }

  // Replaces what is on top until a byte or a token is awaited.
  void expand(Stack first, Stacks& out) const {
    std::set<Stack> seen;
    std::vector<Stack> work{std::move(first)};
    while (!work.empty()) {
      Stack stack = std::move(work.back());
      work.pop_back();
      if (!seen.insert(stack).second) continue;
      if (stack.empty()) {
        out.insert(stack);
        continue;
      }
      const Entry top = stack.back();
      if (!productive_[top.term]) continue;
      const TermTree::Node& node = tree_->at(Term{top.term});
      const auto push = [&](Stack base, Term term) {
        base.push_back({term.index, 0, 0, {}});
        work.push_back(std::move(base));
      };
      Stack rest(stack.begin(), stack.end() - 1);
      switch (node.kind) {
        case TermTree::Kind::kEmpty:
          work.push_back(std::move(rest));
          break;
        case TermTree::Kind::kNever:
          break;
        case TermTree::Kind::kText:
          if (!top.bytes.empty()) {
            out.insert(stack);
          } else {
            rest.push_back({top.term, 0, 0, tree_->texts[node.a]});
            out.insert(rest);
          }
          break;
        case TermTree::Kind::kTexts:
          if (!top.bytes.empty()) {
            out.insert(stack);
            break;
          }
          for (const std::string& text : tree_->text_sets[node.a]) {
            Stack with = rest;
            if (!text.empty()) {
              with.push_back({top.term, 0, 0, text});
              out.insert(std::move(with));
            } else {
              work.push_back(std::move(with));
            }
          }
          break;
        case TermTree::Kind::kSequence: {
          const auto& parts = tree_->lists[node.a];
          for (auto part = parts.rbegin(); part != parts.rend(); ++part)
            rest.push_back({part->index, 0, 0, {}});
          work.push_back(std::move(rest));
          break;
        }
        case TermTree::Kind::kChoice:
          for (const Term part : tree_->lists[node.a]) push(rest, part);
          break;
        case TermTree::Kind::kRule:
          push(rest, tree_->rules[node.a].body);
          break;
        case TermTree::Kind::kRepeat: {
          const TermTree::Bounds bounds = tree_->repeats[node.b];
          if (top.done >= bounds.min) work.push_back(rest);
          if (bounds.max != TermTree::kUnbounded && top.done >= bounds.max) break;
          if (!productive_[node.a]) break;
          // Without an upper bound only whether the lower one is reached matters.
          const bool counts = bounds.max != TermTree::kUnbounded || top.done < bounds.min;
          rest.push_back({top.term, counts ? top.done + 1 : top.done, 1, {}});
          push(std::move(rest), Term{node.a});
          break;
        }
        default:
          out.insert(stack);
      }
    }
  }

  const TermTree* tree_;
  std::vector<bool> productive_;
  Stacks stacks_;
};

}  // namespace synod::grammar_testing
