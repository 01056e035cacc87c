// The samples of a pass, and decode passes, in which every row is sampled.
//
// The host data of a sample is known when its pass is planned. A decode pass uploads the data
// before its operations, so that all operations and samples form one graph. Other passes plan and
// upload the samples of each group of rows between launches.
#include <algorithm>
#include <utility>

#include "cuda/backend/cuda_backend.h"

namespace pb::cuda {
namespace {

SamplingRequest sampling_request(const SampleRequest& request) {
  return {.sampling = request.sampling,
          .history = request.history,
          .appended = request.appended,
          .mask = request.mask,
          .target = request.sampling == nullptr ? request.target : -1,
          .n_top = request.n_top};
}

}  // namespace

bool CudaBackend::is_decode_pass() const {
  const auto n_rows = static_cast<size_t>(batch_.n_rows);
  return batch_.logits_rows.size() == n_rows && batch_.requests.size() == n_rows &&
         batch_.pooled_rows.empty() && graphs_->serve(batch_.n_rows);
}

void CudaBackend::run_pass(PassRows rows, std::span<Sample> samples,
                           FunctionRef<void(PassRows)> operations) {
  bool is_planned = false;
  attempt([&] { is_planned = is_decode_pass() && plan_samples(); });
  if (!is_planned) return operations(rows);
  samples_ = samples;
  n_sampled_ = rows.n_rows;
  samples_planned_ = true;
  attempt([&] { run_decode_pass(operations); });
  samples_planned_ = false;
}

// The first pass of a kind is launched without a graph. This loads its kernels, which is not
// allowed during a capture, and keeps the GPU busy while the graph is captured.
void CudaBackend::run_decode_pass(FunctionRef<void(PassRows)> operations) {
  n_rows_ = graphs_->padded_rows(batch_.n_rows);
  const DecodePass pass{.n_rows = n_rows_, .lists = model_->attention_lists};
  if (graphs_->launch(pass)) return;
  const auto give_work = [&] {
    operations({.n_rows = n_rows_, .n_logits_rows = n_rows_});
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  };
  give_work();
  if (graphs_->serve(n_rows_)) graphs_->capture(pass, give_work);
}

bool CudaBackend::plan_samples() {
  sampling_requests_.clear();
  for (const SampleRequest& request : batch_.requests) {
    sampling_requests_.push_back(sampling_request(request));
  }
  const auto n_rows = sampling_requests_.size();
  const auto padded = static_cast<size_t>(graphs_->padded_rows(batch_.n_rows));
  const PlannedRows planned =
      sampling_planner_->plan(sampling_requests_, pass_->sampling.all(), pass_->changes.all());
  if (static_cast<size_t>(planned.n_rows) < n_rows) return false;
  std::fill(pass_->sampling.host + n_rows, pass_->sampling.host + padded, RowSampling{});
  pass_->upload_sampling(0, padded, 0, planned.n_changes);
  return true;
}

void CudaBackend::sample(const Buffer& logits, Rows rows, std::span<Sample> samples) {
  attempt([&] {
    if (samples_planned_) {
      sample_planned(logits, rows);
    } else {
      samples_ = samples;
      plan_and_sample(logits, rows);
    }
  });
}

// Launches all sampling kernels, whether the rows need them or not, because a graph serves other
// rows too. A block returns at once if its row does not need the kernel.
void CudaBackend::sample_planned(const Buffer& logits, Rows rows) {
  const auto first = static_cast<size_t>(rows.first);
  const SamplingLaunches launches = sampling_launches(
      {.n_rows = rows.n, .n_changes = 1, .is_random = true, .wants_logprobs = true},
      {.logits = logits.as<float>(),
       .vocab = model_->shape.vocab_size,
       .rows = pass_->sampling.device + first,
       .changes = pass_->changes.device,
       .scores = scores_.as<float>(),
       .sampled = pass_->sampled.device + first});
  for (size_t i = 0; i < launches.n; ++i) device_->launch(launches.launches[i]);
  pass_->download_samples(first, static_cast<size_t>(rows.n));
}

// Samples in chunks. If the buffer for score changes is full, waits for the device, collects the
// results and reuses the buffer.
void CudaBackend::plan_and_sample(const Buffer& logits, Rows rows) {
  int done = 0;
  while (done < rows.n) {
    const auto first = static_cast<size_t>(rows.first + done);
    if (pass_->changes.capacity - n_changes_ < static_cast<size_t>(model_->shape.vocab_size)) {
      device_->finish();
      take_samples();
      n_changes_ = 0;
    }
    sampling_requests_.clear();
    for (int i = done; i < std::min(rows.n, done + kMostSampledRows); ++i) {
      sampling_requests_.push_back(
          sampling_request(batch_.requests[static_cast<size_t>(rows.first + i)]));
    }
    const PlannedRows planned = sampling_planner_->plan(
        sampling_requests_, pass_->sampling.all().subspan(first, sampling_requests_.size()),
        pass_->changes.all().subspan(n_changes_));
    const auto n_rows = static_cast<size_t>(planned.n_rows);
    pass_->upload_sampling(first, n_rows, n_changes_, planned.n_changes);
    const SamplingLaunches launches = sampling_launches(
        planned, {.logits = logits.as<float>() + static_cast<size_t>(done) *
                                                     static_cast<size_t>(model_->shape.vocab_size),
                  .vocab = model_->shape.vocab_size,
                  .rows = pass_->sampling.device + first,
                  .changes = pass_->changes.device + n_changes_,
                  .scores = scores_.as<float>(),
                  .sampled = pass_->sampled.device + first});
    for (size_t i = 0; i < launches.n; ++i) device_->launch(launches.launches[i]);
    pass_->download_samples(first, n_rows);
    n_changes_ += planned.n_changes;
    done += planned.n_rows;
    n_sampled_ = rows.first + done;
  }
}

void CudaBackend::take_samples() {
  for (; n_taken_ < n_sampled_; ++n_taken_) {
    const auto row = static_cast<size_t>(n_taken_);
    samples_[row] = sample_of(pass_->sampled.host[row], pass_->sampling.host[row]);
  }
}

}  // namespace pb::cuda
