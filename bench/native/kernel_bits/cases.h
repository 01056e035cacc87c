// Fixed inputs for every kernel, each a case: its launches and the bits that they leave. The same
// numbers on every machine, so that bits can be compared with those of another.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace pb::bench {

struct CaseInfo {
  std::string name;   // by which the bits of another machine are found
  std::string group;  // cases of one group promise the same bits
  bool has_mma;       // the bits depend on how tensor cores add, which architectures do differently
};

class Cases {
 public:
  // is_small: the shortest inputs that reach every kernel.
  explicit Cases(bool is_small) : is_small_(is_small) {}

  bool is_small() const { return is_small_; }
  bool failed() const { return failed_; }
  int n_run() const { return n_run_; }

  // Runs a case, and prints a line with the hash of what it returned, or with its error. After an
  // error of the GPU's none is run any more.
  template <typename T>
  void run(const CaseInfo& info, FunctionRef<std::vector<T>()> run) {
    run_bytes(info, [&] {
      const std::vector<T> values = run();
      std::vector<std::byte> bytes(values.size() * sizeof(T));
      if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    });
  }

  // Prints a line that says why a case cannot be run on this device.
  void leave_out(const CaseInfo& info, const std::string& why);

 private:
  void run_bytes(const CaseInfo& info, FunctionRef<std::vector<std::byte>()> run);

  bool is_small_;
  bool failed_ = false;
  int n_run_ = 0;
};

// A JSON string.
std::string quoted(const std::string& text);

// Runs a case of a kernel that only code for sm_90a has, or prints why it cannot be run.
void run_wgmma_case(Cases& cases, const CaseInfo& info, FunctionRef<std::vector<float>()> run);

void run_gemm_cases(Cases& cases);
void run_expert_cases(Cases& cases);
void run_attention_cases(Cases& cases);
void run_rows_cases(Cases& cases);
void run_rope_cases(Cases& cases);
void run_recurrent_cases(Cases& cases);
void run_sampling_cases(Cases& cases);
// Of kernels that wait for barriers: the last ones, for an error in them may never end.
void run_tma_cases(Cases& cases);
void run_tma_attention_cases(Cases& cases);

}  // namespace pb::bench
