// Graphs of decode passes: one call of the driver in place of hundreds of launches.
//
// A graph holds grids and parameters as they were when it was captured. It serves every pass that
// is padded to the same number of rows and has the same kinds of work lists: all else that differs
// between passes is read from memory at fixed addresses. Padding rows are computed and ignored.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cuda/driver/device.h"

namespace pb::cuda {

// A pass of more rows has enough to do for its launches not to matter.
inline constexpr int kMostDecodeRows = 256;

// What the launches of a decode pass depend on.
struct DecodePass {
  int n_rows = 0;  // padded
  // (plans of attention) AttentionLists that have something in them: others have no launch.
  std::span<const uint8_t> lists = {};
};

class DecodeGraphs {
 public:
  // max_rows: of all passes. Where `enabled` is false no pass has a graph.
  DecodeGraphs(Device& device, int max_rows, bool enabled);

  // Whether passes of n_rows rows are to be launched as graphs.
  bool serve(int n_rows) const { return enabled_ && n_rows <= most_rows_; }

  // n_rows, rounded up to 1, 2, 4, ... 256, but not beyond max_rows.
  int padded_rows(int n_rows) const;

  // Launches the graph of such passes. False where there is none yet, or it cannot be launched.
  bool launch(const DecodePass& pass);

  // Keeps what give_work gives to the stream as the graph of such passes. Nothing is launched, and
  // nothing thrown: where it fails there are no graphs from here on, and problem() says why.
  void capture(const DecodePass& pass, FunctionRef<void()> give_work) noexcept;

  // Forgets all graphs, and what went wrong with them: for when what they refer to has moved.
  void clear();

  const std::string& problem() const { return problem_; }

 private:
  static constexpr size_t kSizes = 9;  // 1, 2, 4, ... kMostDecodeRows

  // Of passes of one number of rows.
  struct Captured {
    std::vector<uint8_t> lists;
    Graph graph;
  };

  std::vector<Captured>& captured_of(int n_rows);
  void give_up(const char* problem);

  Device& device_;
  int most_rows_;
  bool wanted_;
  bool enabled_;
  std::string problem_;
  std::array<std::vector<Captured>, kSizes> graphs_;
};

}  // namespace pb::cuda
