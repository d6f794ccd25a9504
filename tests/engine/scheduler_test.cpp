// The scheduler's promises, as examples and on random walks.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/step_times.h"

namespace synod {
namespace {

using State = Scheduler::State;
using Item = Scheduler::Item;

Scheduler::Limits limits(int64_t sequences, int64_t step, int64_t quantum, int64_t queued = 100) {
  return {.max_sequences = sequences, .max_queued = queued, .step_tokens = step, .prefill_quantum = quantum};
}

void admit_next(Scheduler& s, Scheduler::Id expected, int64_t n_tokens) {
  ASSERT_EQ(s.next_admission(), std::optional<Scheduler::Id>(expected));
  s.admit(expected, n_tokens);
}

TEST(Scheduler, PromptsFillAStepAndDecodingStreamsBoundThem) {
  Scheduler s(limits(4, 100, 20));
  s.enqueue(1, 1);
  admit_next(s, 1, 250);
  EXPECT_EQ(s.plan(), (std::vector<Item>{{1, 100, true}}));
  s.prefilled(1, 100);
  s.prefilled(1, 150);
  EXPECT_EQ(s.state(1), State::kDecode);
  s.enqueue(2, 1);
  admit_next(s, 2, 250);
  EXPECT_EQ(s.plan(), (std::vector<Item>{{1, 1, false}, {2, 20, true}}));
  s.set_draft(1, 3);
  EXPECT_EQ(s.plan(), (std::vector<Item>{{1, 4, false}, {2, 20, true}}));
}

TEST(Scheduler, AdmitsByArrivalWhenTheStepHasRoom) {
  Scheduler s(limits(8, 100, 20));
  for (Scheduler::Id id = 1; id <= 4; ++id) s.enqueue(id, 1);
  admit_next(s, 1, 130);
  EXPECT_FALSE(s.next_admission()) << "the prompt ahead fills the step";
  s.prefilled(1, 100);
  admit_next(s, 2, 10);
  admit_next(s, 3, 500);
  EXPECT_FALSE(s.next_admission());
  EXPECT_EQ(s.plan(), (std::vector<Item>{{1, 30, true}, {2, 10, true}, {3, 60, true}}));
}

TEST(Scheduler, ARequestOfSeveralChoicesTakesItsSlotsAtOnce) {
  Scheduler s(limits(4, 100, 20));
  s.enqueue(1, 3);
  s.enqueue(2, 2);
  s.enqueue(3, 1);
  admit_next(s, 1, 10);
  EXPECT_EQ(s.slots_used(), 3);
  EXPECT_FALSE(s.next_admission()) << "two slots do not fit, and later ones do not overtake";
  s.prefilled(1, 10);
  const std::vector<Scheduler::Id> others = {11, 12};
  s.split(1, others);
  EXPECT_EQ(s.plan().size(), 3U);
  s.remove(11);
  EXPECT_EQ(s.slots_used(), 2);
  admit_next(s, 2, 5);
}

TEST(Scheduler, PreemptsYoungestWhenPagesRunOutAndTakesItBackFirst) {
  Scheduler s(limits(4, 100, 20));
  for (Scheduler::Id id = 1; id <= 3; ++id) {
    s.enqueue(id, 1);
    admit_next(s, id, 5);
    s.prefilled(id, 5);
  }
  s.enqueue(4, 1);
  EXPECT_EQ(s.preemption_victim(1), std::optional<Scheduler::Id>(3));
  EXPECT_EQ(s.preemption_victim(3), std::optional<Scheduler::Id>(3)) << "the needy is the youngest itself";
  s.preempt(3);
  EXPECT_EQ(s.state(3), State::kQueued);
  admit_next(s, 3, 9);
  s.remove(2);
  s.remove(3);
  EXPECT_FALSE(s.preemption_victim(1)) << "nobody else is left";
}

TEST(Scheduler, BoundsTheQueueWithoutThePreempted) {
  Scheduler s(limits(1, 10, 5, 2));
  EXPECT_TRUE(s.enqueue(1, 1));
  admit_next(s, 1, 5);
  EXPECT_TRUE(s.enqueue(2, 1));
  EXPECT_TRUE(s.enqueue(3, 1));
  EXPECT_FALSE(s.enqueue(4, 1));
  s.preempt(1);
  EXPECT_FALSE(s.enqueue(4, 1));
  s.remove(2);
  EXPECT_TRUE(s.enqueue(4, 1));
}

TEST(Scheduler, FindsWhatIsLate) {
  Scheduler s(limits(1, 10, 5));
  s.enqueue(1, 1, 100);
  s.enqueue(2, 1, 50);
  s.enqueue(3, 1);
  EXPECT_EQ(s.next_deadline(), 50);
  EXPECT_TRUE(s.expired(50).empty());
  EXPECT_EQ(s.expired(100), (std::vector<Scheduler::Id>{2}));
  s.remove(2);
  EXPECT_EQ(s.next_deadline(), 100);
}

// Whatever happens, a step keeps its bounds, streams never wait, and everyone's turn comes.
TEST(Scheduler, KeepsItsBoundsOnRandomWalks) {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t quantum = draw(1, 40), step = draw(32, 200), sequences = draw(2, 16);
    Scheduler s(limits(sequences, step, quantum, 50));
    std::map<Scheduler::Id, int64_t> left_to_decode, waited;
    std::map<Scheduler::Id, int64_t> slots;
    Scheduler::Id next = 1;
    int64_t finished = 0, preempted = 0;
    for (int i = 0; i < 5000; ++i) {
      if (draw(0, 3) == 0) {
        const int64_t n = draw(1, std::min<int64_t>(sequences, 4));
        if (s.enqueue(next, n)) slots[next++] = n;
      }
      while (const auto id = s.next_admission()) s.admit(*id, draw(0, 9) == 0 ? draw(1, 3000) : draw(1, 100));
      ASSERT_LE(s.slots_used(), sequences);
      const std::vector<Item> plan = s.plan();
      ASSERT_EQ(plan.empty(), s.n_running() == 0);
      int64_t rows = 0, prefill = 0;
      const int64_t n_decoding = s.n_decoding();
      int64_t decoded = 0;
      for (const Item& item : plan) {
        ASSERT_GT(item.n_tokens, 0);
        (item.is_prefill ? prefill : rows) += item.n_tokens;
        decoded += item.is_prefill ? 0 : 1;
      }
      ASSERT_EQ(decoded, n_decoding) << "a stream was left out";
      if (n_decoding > 0) {
        ASSERT_LE(prefill, quantum);
      }
      ASSERT_LE(rows + prefill, std::max(step, n_decoding) + 1);
      for (const Item& item : plan) {
        if (!s.contains(item.id) || s.state(item.id) == State::kQueued) continue;
        if (draw(0, 200) == 0) {
          s.remove(item.id);
          continue;
        }
        if (draw(0, 100) == 0) {
          const auto victim = s.preemption_victim(item.id);
          if (victim) {
            s.preempt(*victim);
            ++preempted;
            if (*victim == item.id) continue;
          }
        }
        if (!item.is_prefill) {
          if (--left_to_decode[item.id] <= 0) {
            s.remove(item.id);
            ++finished;
          } else {
            s.set_draft(item.id, draw(0, 4));
          }
          continue;
        }
        s.prefilled(item.id, item.n_tokens);
        if (s.state(item.id) != State::kDecode) continue;
        left_to_decode[item.id] = draw(1, 60);
        std::vector<Scheduler::Id> others;
        for (int64_t c = 1; c < slots[item.id]; ++c) {
          left_to_decode[next] = draw(1, 60);
          slots[next] = 1;
          others.push_back(next++);
        }
        s.split(item.id, others);
        slots[item.id] = 1;
      }
    }
    for (int i = 0; i < 20000 && !s.empty(); ++i) {  // without new ones all come to their end
      while (const auto id = s.next_admission()) s.admit(*id, draw(1, 100));
      for (const Item& item : s.plan()) {
        if (!item.is_prefill) {
          s.remove(item.id);
          continue;
        }
        s.prefilled(item.id, item.n_tokens);
        if (s.state(item.id) == State::kDecode) s.remove(item.id);
      }
    }
    EXPECT_TRUE(s.empty());
    EXPECT_EQ(s.slots_used(), 0);
    EXPECT_EQ(s.n_decoding(), 0);
    EXPECT_GT(finished, 50);
    EXPECT_GT(preempted, 10);
  }
}

TEST(StepTimes, LearnsTheQuantumThatFitsTheGap) {
  StepTimes times;
  EXPECT_EQ(times.prefill_quantum(0.2, 0), 64);
  for (int i = 0; i < 50; ++i) {
    times.observe(0, 1, 0.010);
    times.observe(0, 4, 0.013);
    times.observe(100, 4, 0.113);  // 1 ms per prompt token
  }
  EXPECT_NEAR(times.per_row(), 0.001, 1e-5);
  EXPECT_NEAR(times.base(), 0.009, 1e-4);
  EXPECT_NEAR(static_cast<double>(times.prefill_quantum(0.2, 4)), 0.187 / 0.00109, 12);
  EXPECT_EQ(times.prefill_quantum(0.001, 4), 8) << "prompts go on however slow steps are";
}

TEST(StepTimes, DraftsPayWhereRowsAreCheapAndGuessesGood) {
  StepTimes cheap, dear;
  for (int i = 0; i < 50; ++i) {
    for (const int64_t rows : {1, 3}) {
      cheap.observe(0, rows, 0.010 + 0.0005 * static_cast<double>(rows));
      dear.observe(0, rows, 0.001 + 0.010 * static_cast<double>(rows));
    }
  }
  EXPECT_TRUE(cheap.draft_pays(4, 0.5, 1));
  EXPECT_FALSE(cheap.draft_pays(4, 0.05, 1));
  EXPECT_FALSE(dear.draft_pays(4, 0.5, 1));
  EXPECT_FALSE(cheap.draft_pays(4, 0.5, 32)) << "the others would wait";
}

}  // namespace
}  // namespace synod
