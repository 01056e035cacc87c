// CUDA graphs of decode passes: one call of the driver replaces hundreds of launches.
//
// A graph has the grids and parameters of its capture. It serves every pass that is padded to the
// same number of rows and has the same kinds of work lists. Everything else that differs between
// passes is read from memory at fixed addresses. Padding rows are computed and ignored.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cuda/driver/device.h"

namespace pb::cuda {

// The most rows of a pass with a graph. In larger passes the cost of launches is negligible.
inline constexpr int kMostDecodeRows = 256;

// The properties of a decode pass that its launches depend on.
struct DecodePass {
  int n_rows = 0;  // including padding
  // (plans of attention): the AttentionLists that are not empty. Only these have a launch.
  std::span<const uint8_t> lists = {};
};

class DecodeGraphs {
 public:
  // max_rows is the greatest number of rows of a pass. If `enabled` is false, no pass has a graph.
  DecodeGraphs(Device& device, int max_rows, bool enabled);

  // Returns true if passes of n_rows rows are launched as graphs.
  bool serve(int n_rows) const { return enabled_ && n_rows <= most_rows_; }

  // Returns n_rows rounded up to 1, 2, 4, ... 256, but not beyond max_rows.
  int padded_rows(int n_rows) const;

  // Launches the graph of such passes. Returns false if there is none yet or it cannot be launched.
  bool launch(const DecodePass& pass);

  // Captures the work that give_work launches as the graph of such passes. Nothing runs and nothing
  // is thrown: after a failure no more graphs are made or launched, and problem() returns the
  // reason.
  void capture(const DecodePass& pass, FunctionRef<void()> give_work) noexcept;

  // Drops all graphs and the recorded problem. Called after memory that the graphs refer to has
  // moved.
  void clear();

  const std::string& problem() const { return problem_; }

 private:
  static constexpr size_t kSizes = 9;  // 1, 2, 4, ... kMostDecodeRows

  // The graphs of passes of one number of rows.
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
