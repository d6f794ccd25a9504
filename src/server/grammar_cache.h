// Compiled grammars by their source, most recently used first. Their token masks are cached inside them, so
// that the second request with a schema is fast from its first token.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "server/api.h"
#include "text/grammar/builder.h"
#include "text/grammar/grammar.h"

namespace synod::server {

class Api::GrammarCache {
 public:
  void set_vocabulary(std::shared_ptr<const Vocabulary> vocabulary) { vocabulary_ = std::move(vocabulary); }

  // Throws kUsage for a source that is no grammar or exceeds the limits.
  std::shared_ptr<const Grammar> get(const ResponseFormat& format) {
    std::string key(1, static_cast<char>('0' + static_cast<int>(format.kind)));
    key += format.source;
    for (const std::string& choice : format.choices) key += choice + '\0';
    return find_or(std::move(key), [&] { return compile(format); });
  }

  // The same for a term that `make` puts together; `key` says what it depends on.
  template <typename F>
  std::shared_ptr<const Grammar> get(std::string key, F&& make) {
    return find_or(std::move(key), [&] {
      GrammarBuilder builder(limits());
      const Term root = make(builder);
      return builder.build(root, vocabulary_);
    });
  }

 private:
  static constexpr size_t kEntries = 16;

  static GrammarLimits limits() {
    GrammarLimits l;
    l.cache_bytes = size_t{16} << 20;
    return l;
  }

  template <typename F>
  std::shared_ptr<const Grammar> find_or(std::string key, F&& make) {
    {
      const std::lock_guard lock(mutex_);
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (it->first != key) continue;
        entries_.splice(entries_.begin(), entries_, it);
        return entries_.front().second;
      }
    }
    // Compiled outside of the lock: two requests at once may do it twice, none waits for another's.
    auto grammar = make();
    const std::lock_guard lock(mutex_);
    entries_.emplace_front(std::move(key), grammar);
    if (entries_.size() > kEntries) entries_.pop_back();
    return grammar;
  }

  std::shared_ptr<const Grammar> compile(const ResponseFormat& format) const {
    switch (format.kind) {
      case ResponseFormat::Kind::kJsonObject:
        return Grammar::json_object(vocabulary_);
      case ResponseFormat::Kind::kJsonSchema:
        return Grammar::from_json_schema(format.source, vocabulary_, {}, limits());
      case ResponseFormat::Kind::kGrammar:
        return Grammar::from_gbnf(format.source, vocabulary_, limits());
      case ResponseFormat::Kind::kChoice: {
        GrammarBuilder builder(limits());
        return builder.build(builder.any_of_texts(format.choices), vocabulary_);
      }
      case ResponseFormat::Kind::kText:
        break;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> entries_;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

}  // namespace synod::server
