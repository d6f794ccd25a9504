// One truth: whatever else runs, whatever was cached, saved, restored, evicted or cancelled, a request's
// tokens are those of a sequence of its own.
//
// SYNOD_WALK_STEPS sets the length of the random walk (default a few hundred), SYNOD_WALK_SEED its seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "engine/engine_testing.h"
#include "temp_folder.h"

namespace synod::testing {
namespace {

using namespace std::chrono_literals;

int64_t number_from_environment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoll(text);
}

struct Collected {
  std::vector<int32_t> ids;
  bool finished = false;
};

Collected collect(EventQueue& queue) {
  Collected result;
  while (std::optional<EngineEvent> event = queue.pop()) {
    if (const auto* t = std::get_if<TokensEvent>(&*event)) {
      for (const TokenInfo& token : t->tokens) result.ids.push_back(token.id);
    }
    if (const auto* f = std::get_if<FinishedEvent>(&*event))
      result.finished = f->reason != FinishReason::kCancelled;
  }
  return result;
}

class Equality : public ::testing::TestWithParam<const char*> {
 protected:
  const Loaded& m() const { return loaded(GetParam()); }
};

TEST_P(Equality, EveryRequestOfABatchIsItsLoneRun) {
  enum class Mix { kEqual, kDifferent, kStaggered };
  std::map<std::pair<int64_t, bool>, std::vector<int32_t>> lone;  // by prompt number, sampled or not
  const auto request = [](int64_t i, bool sampled) {
    GenerationRequest r;
    r.prompt = random_ids(20 + i * 37 % 300, static_cast<uint32_t>(i + 1));
    r.max_tokens = 10 + i % 7;
    r.ignore_eos = true;
    r.cache_prompt = false;
    if (sampled) {
      r.sampling = {.temperature = 1.0F, .top_k = 50, .top_p = 0.9F, .seed = static_cast<uint64_t>(i)};
      r.sampling.frequency_penalty = 0.5F;
    }
    return r;
  };
  Engine engine(*m().model, *m().backend, m().tokenizer);
  for (const int64_t n : {1, 2, 3, 5, 8, 16, 32}) {
    for (const Mix mix : {Mix::kEqual, Mix::kDifferent, Mix::kStaggered}) {
      std::vector<std::unique_ptr<EventQueue>> queues;
      const auto number = [&](int64_t i) { return mix == Mix::kEqual ? n : i; };
      for (int64_t i = 0; i < n; ++i) {
        queues.push_back(std::make_unique<EventQueue>());
        engine.submit(request(number(i), i % 3 == 2), queues.back()->sink());
        if (mix == Mix::kStaggered) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      std::vector<std::vector<int32_t>> got;
      for (auto& queue : queues) got.push_back(collect(*queue).ids);
      for (int64_t i = 0; i < n; ++i) {
        const bool sampled = i % 3 == 2;
        std::vector<int32_t>& want = lone[{number(i), sampled}];
        const GenerationRequest r = request(number(i), sampled);
        if (want.empty())
          want = sampled ? engine.generate(r).ids[0] : lone_greedy(m(), r.prompt, r.max_tokens);
        ASSERT_EQ(got[static_cast<size_t>(i)], want)
            << n << " requests, mix " << static_cast<int>(mix) << ", " << i;
      }
    }
  }
  const EngineStats stats = engine.stats();
  EXPECT_GT(static_cast<double>(stats.step_sequences_total) / static_cast<double>(stats.steps_total), 1.5)
      << "requests did not run together";
}

TEST_P(Equality, DraftsChangeNothingAndAreUsedWhereTextRepeats) {
  EngineOptions plain;
  plain.max_draft = 0;
  EngineOptions eager;
  eager.draft_always = true;
  for (const float temperature : {0.0F, 0.7F}) {
    std::vector<std::vector<int32_t>> ids;
    int64_t accepted = 0;
    for (const EngineOptions& options : {plain, eager, EngineOptions{}}) {
      Engine engine(*m().model, *m().backend, m().tokenizer, options);
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        GenerationRequest r;
        const std::vector<int32_t> part = m().encode(seed % 2 == 0 ? " and the waters were upon the earth"
                                                                   : " he said unto them, go forth");
        for (int i = 0; i < 6; ++i) r.prompt.insert(r.prompt.end(), part.begin(), part.end());
        r.max_tokens = 120;
        r.ignore_eos = true;
        r.sampling.temperature = temperature;
        r.sampling.seed = seed;
        ids.push_back(engine.generate(r).ids[0]);
      }
      if (options.draft_always) accepted = engine.stats().accepted_tokens_total;
    }
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(ids[i % 4], ids[i + 4]) << temperature << " " << i;
    std::printf("%s, temperature %g: %lld of 480 tokens were drafted\n", GetParam(),
                static_cast<double>(temperature), static_cast<long long>(accepted));
    if (temperature == 0.0F) {
      EXPECT_GT(accepted, 20);
    }
  }
}

// More requests than there are pages for: they are preempted, prompts enter in small pieces, drafts and
// cached prefixes give way. None of it shows in a text.
TEST_P(Equality, TokensAreThoseOfALoneRunWithLittleRoom) {
  int64_t preemptions = 0, evictions = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const auto random_part = [&](int64_t n) {
      return random_ids(n, static_cast<uint32_t>(draw(1, 1 << 20)));
    };
    const std::vector<int32_t> shared[] = {random_part(draw(1, 300)), random_part(draw(200, 400))};
    std::vector<GenerationRequest> requests;
    for (int64_t i = 0; i < 14; ++i) {
      GenerationRequest& r = requests.emplace_back();
      r.prompt = shared[draw(0, 1)];
      r.prompt.resize(static_cast<size_t>(draw(1, static_cast<int64_t>(r.prompt.size()))));
      const std::vector<int32_t> own = random_part(draw(1, 150));
      // Said twice, so that drafts are made.
      for (int64_t times = draw(1, 2); times > 0; --times) {
        r.prompt.insert(r.prompt.end(), own.begin(), own.end());
      }
      r.max_tokens = draw(1, 60);
      r.ignore_eos = true;
      if (draw(0, 3) > 0) continue;
      r.n = draw(1, 3);
      r.sampling = {.temperature = 1.0F, .top_k = 50, .seed = static_cast<uint64_t>(i)};
    }
    EngineOptions options;
    options.max_sequences = draw(3, 8);
    options.step_tokens = draw(40, 400);
    options.prefill_quantum = draw(1, 200);
    options.draft_always = draw(0, 1) == 1;
    // Each of them has room alone, no two of the longest have.
    options.cache_bytes = m().model->cache_spec().bytes(draw(780, 1000));
    std::vector<std::vector<std::vector<int32_t>>> got(requests.size());
    {
      Engine engine(*m().model, *m().backend, m().tokenizer, options);
      std::vector<std::unique_ptr<EventQueue>> queues;
      for (const GenerationRequest& r : requests) {
        queues.push_back(std::make_unique<EventQueue>());
        engine.submit(r, queues.back()->sink());
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        got[i].resize(static_cast<size_t>(requests[i].n));
        std::optional<EngineEvent> event;
        while ((event = queues[i]->pop()) && !is_last(*event)) {
          const auto* tokens = std::get_if<TokensEvent>(&*event);
          if (tokens == nullptr) continue;
          auto& ids = got[i][static_cast<size_t>(tokens->choice)];
          for (const TokenInfo& token : tokens->tokens) ids.push_back(token.id);
        }
        ASSERT_TRUE(std::holds_alternative<FinishedEvent>(*event)) << "seed " << seed << ", request " << i;
      }
      const EngineStats stats = engine.stats();
      EXPECT_LE(stats.cache_bytes_used, stats.cache_bytes_limit);
      preemptions += stats.preemptions_total;
      evictions += stats.evictions_total;
    }
    Engine roomy(*m().model, *m().backend, m().tokenizer);
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerationRequest& r = requests[i];
      r.cache_prompt = false;
      r.speculate = false;
      const bool greedy = r.n == 1 && r.sampling.plain_greedy();
      if (greedy) {
        ASSERT_EQ(got[i][0], lone_greedy(m(), r.prompt, r.max_tokens))
            << "seed " << seed << ", request " << i;
      } else {
        ASSERT_EQ(got[i], roomy.generate(r).ids) << "seed " << seed << ", request " << i;
      }
    }
  }
  std::printf("%s: %lld preemptions, %lld evictions\n", GetParam(), static_cast<long long>(preemptions),
              static_cast<long long>(evictions));
  EXPECT_GT(preemptions, 3);
  EXPECT_GT(evictions, 3);
}

// The walk: conversations that share beginnings, on an engine with little memory and a folder for prefixes.
class Walk {
 public:
  Walk(const Loaded& m, uint32_t seed) : m_(m), random_(seed) {
    options_.cache_bytes = m.model->cache_spec().bytes(3000);
    options_.max_sequences = 4;
    options_.step_tokens = 200;
    options_.cache_dir = folder_.path() / "cache";
    options_.cache_dir_bytes = 40 << 20;
    start();
    for (uint32_t i = 0; i < 3; ++i) shared_.push_back(random_ids(draw(100, 600), 100 + i));
    talks_.push_back(shared_[0]);
  }

  void step(int64_t number) {
    const int64_t action = draw(0, 99);
    std::vector<int32_t>& talk =
        talks_[static_cast<size_t>(draw(0, static_cast<int64_t>(talks_.size()) - 1))];
    if (action < 25) {  // a new conversation on a shared beginning
      std::vector<int32_t> ids = shared_[static_cast<size_t>(draw(0, 2))];
      ids.resize(static_cast<size_t>(draw(1, static_cast<int64_t>(ids.size()))));
      append(ids, draw(1, 60));
      keep(ids);
      check(ids, number);
    } else if (action < 50) {  // the next turn
      std::vector<int32_t> ids = talk;
      append(ids, draw(1, 80));
      check(ids, number);
      keep(ids);
    } else if (action < 62) {  // another answer from some place on
      std::vector<int32_t> ids = talk;
      ids.resize(static_cast<size_t>(draw(1, static_cast<int64_t>(ids.size()))));
      append(ids, draw(0, 30));
      check(ids, number);
      keep(ids);
    } else if (action < 70) {  // the same again
      check(talk, number);
    } else if (action < 82) {  // cancelled somewhere
      std::vector<int32_t> ids = talk;
      append(ids, draw(1, 400));
      cancel(ids);
    } else if (action < 86) {  // several at once
      several(number);
    } else if (action < 91) {
      save_and_restore(talk, number);
    } else if (action < 95) {
      restart();
    } else if (action < 98) {
      engine_->clear_cache();
    } else {  // something large that pushes out the rest
      check(random_ids(draw(800, 1400), static_cast<uint32_t>(number)), number);
    }
  }

  void report() const {
    const EngineStats s = engine_->stats();
    std::printf(
        "%lld checks, %lld tokens reused of %lld, %lld restored, %lld restarts, %lld disk hits, "
        "%lld evictions, %lld cancelled\n",
        static_cast<long long>(checks_), static_cast<long long>(reused_), static_cast<long long>(prompted_),
        static_cast<long long>(restored_), static_cast<long long>(restarts_),
        static_cast<long long>(disk_hits_ + s.disk_hits_total),
        static_cast<long long>(evictions_ + s.evictions_total), static_cast<long long>(cancelled_));
    EXPECT_GT(reused_, prompted_ / 10);
    EXPECT_GE(disk_hits_ + s.disk_hits_total, restarts_ / 2);
    EXPECT_GT(evictions_ + s.evictions_total, 0);
  }

 private:
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void start() { engine_ = std::make_unique<Engine>(*m_.model, *m_.backend, m_.tokenizer, options_); }

  void restart() {
    const EngineStats stats = engine_->stats();
    disk_hits_ += stats.disk_hits_total;
    evictions_ += stats.evictions_total;
    engine_.reset();
    start();
    ++restarts_;
  }

  void append(std::vector<int32_t>& ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(draw(300, 8191)));
  }

  void keep(std::vector<int32_t> ids) {
    constexpr size_t kTalks = 12, kLongest = 900;
    if (ids.size() > kLongest) ids.resize(kLongest);
    if (talks_.size() == kTalks) talks_.erase(talks_.begin() + draw(0, static_cast<int64_t>(kTalks) - 1));
    talks_.push_back(std::move(ids));
  }

  GenerationRequest request(const std::vector<int32_t>& ids) const {
    GenerationRequest r;
    r.prompt = ids;
    r.max_tokens = 8;
    return r;
  }

  const std::vector<int32_t>& fresh(const std::vector<int32_t>& ids) {
    std::vector<int32_t>& answer = fresh_[ids];
    if (answer.empty()) answer = lone_greedy(m_, ids, 8);
    return answer;
  }

  void check(const std::vector<int32_t> ids, int64_t number) {
    const Engine::Result result = engine_->generate(request(ids));
    ++checks_;
    prompted_ += static_cast<int64_t>(ids.size());
    reused_ += result.finished.usage.cached_tokens;
    ASSERT_LT(result.finished.usage.cached_tokens, static_cast<int64_t>(ids.size()));
    ASSERT_EQ(result.ids[0], fresh(ids)) << "step " << number << ", " << ids.size() << " tokens, "
                                         << result.finished.usage.cached_tokens << " cached";
  }

  void cancel(const std::vector<int32_t>& ids) {
    EventQueue queue;
    GenerationRequest r = request(ids);
    r.max_tokens = 200;
    r.progress = true;
    const GenerationHandle handle = engine_->submit(r, queue.sink());
    for (int64_t i = draw(0, 6); i > 0; --i) static_cast<void>(queue.pop(50ms));
    handle.cancel();
    collect(queue);
    ++cancelled_;
  }

  void several(int64_t number) {
    std::vector<std::unique_ptr<EventQueue>> queues;
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = draw(2, 6); i > 0; --i) {
      std::vector<int32_t> ids =
          talks_[static_cast<size_t>(draw(0, static_cast<int64_t>(talks_.size()) - 1))];
      append(ids, draw(0, 3));
      prompts.push_back(ids);
      queues.push_back(std::make_unique<EventQueue>());
      engine_->submit(request(ids), queues.back()->sink());
    }
    for (size_t i = 0; i < queues.size(); ++i) {
      const Collected got = collect(*queues[i]);
      ASSERT_TRUE(got.finished);
      ASSERT_EQ(got.ids, fresh(prompts[i]))
          << "step " << number << ", request " << i << " of " << queues.size();
    }
  }

  void save_and_restore(const std::vector<int32_t> ids, int64_t number) {
    const std::filesystem::path file = folder_.path() / "talk.kv";
    check(ids, number);
    const int64_t saved = engine_->save(ids, file);
    ASSERT_GT(saved, 0);
    if (draw(0, 1) == 0) {
      restart();
    } else {
      engine_->clear_cache();
    }
    const std::vector<int32_t> restored = engine_->restore(file);
    ASSERT_EQ(restored, std::vector<int32_t>(ids.begin(), ids.begin() + saved));
    ++restored_;
    std::vector<int32_t> more = ids;
    append(more, draw(1, 5));
    check(more, number);
  }

  const Loaded& m_;
  std::mt19937 random_;
  test::TempFolder folder_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> shared_, talks_;
  std::map<std::vector<int32_t>, std::vector<int32_t>> fresh_;
  int64_t checks_ = 0, reused_ = 0, prompted_ = 0, restored_ = 0, restarts_ = 0, cancelled_ = 0,
          disk_hits_ = 0, evictions_ = 0;
};

TEST_P(Equality, TokensAreAFreshEnginesOnARandomWalk) {
  const int64_t steps = number_from_environment("SYNOD_WALK_STEPS", 120);
  Walk walk(m(), static_cast<uint32_t>(number_from_environment("SYNOD_WALK_SEED", 1)));
  for (int64_t i = 0; i < steps && !HasFatalFailure(); ++i) walk.step(i);
  walk.report();
}

INSTANTIATE_TEST_SUITE_P(Families, Equality, ::testing::Values("gemma4", "deepseek4"));

}  // namespace
}  // namespace synod::testing
