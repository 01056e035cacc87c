#include "device_double.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace pb::test {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of addresses; memory is what is touched

}  // namespace

#ifdef _WIN32

ClosedPages::ClosedPages() {
  void* pages = VirtualAlloc(nullptr, kMostBytes, MEM_RESERVE, PAGE_NOACCESS);
  if (pages == nullptr) throw std::bad_alloc();
  first_ = static_cast<std::byte*>(pages);
}

ClosedPages::~ClosedPages() { VirtualFree(first_, 0, MEM_RELEASE); }

void ClosedPages::protect(bool is_open) {
  is_open_ = is_open;
  if (taken_ == 0) return;
  const DWORD rights = is_open ? PAGE_READWRITE : PAGE_NOACCESS;
  DWORD before = 0;
  VirtualAlloc(first_, taken_, MEM_COMMIT, rights);  // those that are new
  VirtualProtect(first_, taken_, rights, &before);
}

static size_t page_bytes() {
  SYSTEM_INFO info{};
  GetSystemInfo(&info);
  return info.dwPageSize;
}

#else

ClosedPages::ClosedPages() {
  void* pages =
      mmap(nullptr, kMostBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  first_ = static_cast<std::byte*>(pages);
}

ClosedPages::~ClosedPages() { munmap(first_, kMostBytes); }

void ClosedPages::protect(bool is_open) {
  is_open_ = is_open;
  if (taken_ > 0) mprotect(first_, taken_, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

#endif

std::byte* ClosedPages::take(size_t bytes) {
  const size_t page = page_bytes();
  const size_t whole = (bytes + page - 1) / page * page;
  if (whole > kMostBytes - taken_) throw std::bad_alloc();
  std::byte* taken = first_ + taken_;
  taken_ += whole;
  protect(is_open_);
  return taken;
}

class DeviceDouble::Operation {
 public:
  explicit Operation(DeviceDouble& device) : pages_(*device.pages_) { pages_.open(); }
  ~Operation() { pages_.close(); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  ClosedPages& pages_;
};

DeviceDouble::DeviceDouble(std::unique_ptr<Backend> inner)
    : inner_(std::move(inner)), pages_(std::make_shared<ClosedPages>()) {}

// -- at load ----------------------------------------------------------------------------------

// To be called within an operation.
Buffer DeviceDouble::moved(Buffer from) {
  if (!from) return {};
  std::byte* to = pages_->take(from.bytes());
  std::memcpy(to, from.as<std::byte>(), from.bytes());
  return {to, from.bytes(), pages_};
}

Vector DeviceDouble::moved(Vector v) { return {v.size, moved(std::move(v.values))}; }

PackedMatrix DeviceDouble::pack(std::span<const TensorView> parts,
                                std::span<const TensorView> biases, DType dtype) {
  return inner_->pack(parts, biases, dtype);
}

MatrixBytes DeviceDouble::matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const {
  return inner_->matrix_bytes(n_out, n_in, dtype, compressed);
}

Matrix DeviceDouble::place(PackedMatrix packed) {
  const Operation operation(*this);
  Matrix m = inner_->place(std::move(packed));
  return {m.n_out,
          m.n_in,
          m.dtype,
          moved(std::move(m.packed)),
          moved(std::move(m.bias)),
          moved(std::move(m.order)),
          m.compressed};
}

Vector DeviceDouble::make_vector(const TensorView& view) {
  const Operation operation(*this);
  return moved(inner_->make_vector(view));
}

Buffer DeviceDouble::make_buffer(size_t bytes) {
  const Operation operation(*this);
  return moved(inner_->make_buffer(bytes));
}

Activations DeviceDouble::make_activations(int max_rows, int cols, DType weights) {
  const Operation operation(*this);
  Activations a = inner_->make_activations(max_rows, cols, weights);
  a.data = moved(std::move(a.data));
  a.groups = moved(std::move(a.groups));
  return a;
}

RopeTable DeviceDouble::make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                                  std::span<const int32_t> axes) {
  const Operation operation(*this);
  RopeTable table = inner_->make_rope(inv_freq, factors, axes);
  table.cosines = moved(std::move(table.cosines));
  table.sines = moved(std::move(table.sines));
  table.axes = moved(std::move(table.axes));
  return table;
}

KvStorage DeviceDouble::make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                                int head_dim, DType dtype) {
  const Operation operation(*this);
  KvStorage kv = inner_->make_kv(n_blocks, block_size, n_layers, n_kv_heads, head_dim, dtype);
  kv.data = moved(std::move(kv.data));
  return kv;
}

void DeviceDouble::prepare(const PassShape& shape) {
  shapes_[static_cast<size_t>(shape.model)] = shape;
  inner_->prepare(shape);
}

// -- in the forward pass ----------------------------------------------------------------------

void DeviceDouble::plan(const RowBatch& batch, const KvStorage& kv) {
  const Operation operation(*this);
  shape_ = shapes_[static_cast<size_t>(batch.model)];
  if (batch.n_rows > shape_.max_rows) problem_ = "more rows than prepare() was told of";
  for (const SequenceRows& rows : batch.sequences) {
    if (rows.end_position() > shape_.n_positions) {
      problem_ = "a position beyond those that prepare() was told of";
    }
  }
  if (!pending_samples_.empty()) problem_ = "draws of a pass that nobody finished";
  requests_.assign(batch.requests.begin(), batch.requests.end());
  for (SampleRequest& request : requests_) request.draft = kNoToken;
  samples_.resize(batch.logits_rows.size());
  RowBatch all_sampled = batch;
  all_sampled.requests = requests_;
  inner_->plan(all_sampled, kv);
}

void DeviceDouble::embed(const Matrix& table, float scale, Buffer& x) {
  const Operation operation(*this);
  inner_->embed(table, scale, x);
}

void DeviceDouble::embed_add(const Matrix& table, Buffer& x) {
  const Operation operation(*this);
  inner_->embed_add(table, x);
}

void DeviceDouble::give_rows(int first_column, int columns, Store store, Buffer& x) {
  const Operation operation(*this);
  if (first_column + columns > shape_.given_columns) problem_ = "more columns than prepare() knows";
  inner_->give_rows(first_column, columns, store, x);
}

void DeviceDouble::norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) {
  const Operation operation(*this);
  inner_->norm(x, rows, norm, out);
}

void DeviceDouble::norm_in_place(Buffer& x, int n_rows, const Norm& norm) {
  const Operation operation(*this);
  inner_->norm_in_place(x, n_rows, norm);
}

void DeviceDouble::norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) {
  const Operation operation(*this);
  inner_->norm_add(y, n_rows, norm, x);
}

void DeviceDouble::round(const Buffer& x, int n_rows, Activations& out) {
  const Operation operation(*this);
  inner_->round(x, n_rows, out);
}

void DeviceDouble::permute(const Activations& x, int n_rows, const Buffer& order,
                           Activations& out) {
  const Operation operation(*this);
  inner_->permute(x, n_rows, order, out);
}

void DeviceDouble::matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y,
                          Store store) {
  const Operation operation(*this);
  inner_->matmul(x, n_rows, w, y, store);
}

void DeviceDouble::rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) {
  const Operation operation(*this);
  inner_->rope_and_store(qkv, layer, kv);
}

void DeviceDouble::attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                             Activations& out) {
  const Operation operation(*this);
  inner_->attention(qkv, layer, kv, out);
}

void DeviceDouble::activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                            Activations& out) {
  const Operation operation(*this);
  inner_->activate(gate_up, n_rows, kind, gated, out);
}

void DeviceDouble::xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) {
  const Operation operation(*this);
  inner_->xielu(x, n_rows, of_layer, out);
}

void DeviceDouble::multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                      const Buffer& factors, int n_factors, int first,
                                      Activations& out) {
  const Operation operation(*this);
  inner_->multiply_activated(gate, n_rows, kind, factors, n_factors, first, out);
}

void DeviceDouble::scale_logits(Buffer& logits, int n_rows, float scale, float softcap) {
  const Operation operation(*this);
  inner_->scale_logits(logits, n_rows, scale, softcap);
}

void DeviceDouble::sample(const Buffer& logits, Rows rows, std::span<Sample> samples) {
  const Operation operation(*this);
  inner_->sample(logits, rows, samples_);
  pending_samples_.push_back({rows, samples});
  for (Sample& sample : samples.subspan(size_t(rows.first), size_t(rows.n))) {
    sample = {.failure = "read before finish()"};
  }
}

void DeviceDouble::download(const Buffer& from, std::span<std::byte> to) {
  const Operation operation(*this);
  pending_bytes_.push_back({downloaded_.size(), to});
  downloaded_.resize(downloaded_.size() + to.size());
  inner_->download(from, std::span(downloaded_).last(to.size()));
  std::ranges::fill(to, std::byte{0xff});  // NaN
}

void DeviceDouble::copy_block(KvStorage& kv, int from, int to) {
  const Operation operation(*this);
  inner_->copy_block(kv, from, to);
}

void DeviceDouble::finish(Heartbeat& heartbeat) {
  const auto samples = std::exchange(pending_samples_, {});
  const auto downloads = std::exchange(pending_bytes_, {});
  const auto bytes = std::exchange(downloaded_, {});
  std::string problem = std::exchange(problem_, "");
  if (std::exchange(fails_, false)) problem = "the device failed";
  if (!problem.empty()) throw Error(ErrorCode::kEngine, problem);
  const Operation operation(*this);
  inner_->finish(heartbeat);
  for (const PendingSamples& pending : samples) {
    std::copy_n(samples_.begin() + pending.rows.first, pending.rows.n,
                pending.to.begin() + pending.rows.first);
  }
  for (const PendingBytes& pending : downloads) {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(pending.first), pending.to.size(),
                pending.to.begin());
  }
}

void DeviceDouble::restart() {
  if (is_dead_) throw Error(ErrorCode::kEngine, "the device does not answer");
  inner_->restart();
}

}  // namespace pb::test
