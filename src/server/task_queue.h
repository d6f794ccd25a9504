// One thread that runs small tasks in order: the streams' formatting, away from the engine's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace synod::server {

class TaskQueue {
 public:
  TaskQueue() : thread_([this] { run(); }) {}
  ~TaskQueue() { stop(); }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    ready_.notify_one();
  }

  // Runs what was posted, then ends. Later tasks are dropped.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    ready_.notify_one();
    if (thread_.joinable()) thread_.join();
    tasks_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [this] { return is_stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // destroys what it holds without the lock
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace synod::server
