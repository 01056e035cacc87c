// Serialises calls of several threads on one Engine, and refuses calls after close() and in a
// forked child.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"

namespace pb {

class GuardedEngine {
 public:
  // Counters that can be read at any time without waiting for a call in progress. Their values are
  // those at the end of the last call.
  struct Counters {
    int kv_free_blocks = 0;
    int kv_cached_blocks = 0;
    int kv_appendable_blocks = 0;
    int used_sequences = 0;
    EngineStatistics statistics;
  };

  explicit GuardedEngine(std::unique_ptr<Engine> engine)
      : engine_(std::move(engine)), heartbeat_(engine_->heartbeat()) {
    publish();
  }

  // In a forked child the compute threads do not exist and cannot be joined, so the child leaks its
  // copy of the engine.
  ~GuardedEngine() {
    if (getpid() != owner_) (void)engine_.release();
  }
  GuardedEngine(const GuardedEngine&) = delete;
  GuardedEngine& operator=(const GuardedEngine&) = delete;

  // Calls f(Engine&) alone, after waiting for the call in progress. Throws kEngine if the engine is
  // closed or the process is a forked child, and any exception of f.
  template <typename F>
  auto call(F&& f) {
    // Before locking: a mutex held by another thread at the fork stays locked in the child.
    check_process();
    const std::lock_guard lock(mutex_);
    check_open();
    const Publisher publisher{*this};
    return std::forward<F>(f)(*engine_);
  }

  // Returns the counters without waiting for a call in progress. Throws kEngine if the engine is
  // closed or the process is a forked child.
  Counters counters() const {
    check_process();
    const std::lock_guard lock(counters_mutex_);
    if (closed_) throw_closed();
    return counters_;
  }

  // Returns a count that grows while a call computes. Takes no lock and throws nothing.
  int64_t progress() const { return heartbeat_->count(); }

  // Waits for the call in progress and frees weights and KV. Does nothing if called again.
  void close() {
    check_process();
    const std::lock_guard lock(mutex_);
    {
      const std::lock_guard counters_lock(counters_mutex_);
      closed_ = true;
    }
    engine_.reset();
  }

 private:
  // Publishes the counters when a call ends, including by an exception.
  struct Publisher {
    GuardedEngine& guarded;
    ~Publisher() { guarded.publish(); }
  };

  void publish() {
    const KvCache& kv = engine_->kv();
    const std::lock_guard lock(counters_mutex_);
    counters_ = {.kv_free_blocks = kv.free_blocks(),
                 .kv_cached_blocks = kv.cached_blocks(),
                 .kv_appendable_blocks = kv.appendable_blocks(),
                 .used_sequences = kv.used_sequences(),
                 .statistics = engine_->statistics()};
  }

  void check_process() const {
    if (getpid() != owner_) {
      throw Error(ErrorCode::kEngine,
                  "this engine was made in process " + std::to_string(owner_) +
                      " and used in its forked child " + std::to_string(getpid()) +
                      "; make the engine after the fork, or start processes by 'spawn'");
    }
  }
  void check_open() const {
    if (engine_ == nullptr) throw_closed();
  }
  [[noreturn]] static void throw_closed() {
    throw Error(ErrorCode::kEngine, "this engine is closed; load a new one");
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;  // held during a call
  std::unique_ptr<Engine> engine_;
  const std::shared_ptr<const Heartbeat> heartbeat_;  // outlives the engine
  mutable std::mutex counters_mutex_;                 // held briefly; locked after mutex_
  Counters counters_;
  bool closed_ = false;
};

}  // namespace pb
