#include "model/packed_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace pb {
namespace {

constexpr size_t kLine = Hash64::kBlock;    // alignment of buffers
constexpr size_t kChunk = size_t{4} << 20;  // bytes that a thread checks or copies at a time
constexpr size_t kLeaveFree = size_t{1} << 30;
constexpr std::array<char, 8> kMagic = {'P', 'B', 'P', 'A', 'C', 'K', 'E', 'D'};
constexpr uint32_t kByteOrder = 0x01020304;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t byte_order = kByteOrder;
  uint32_t version = kPackedFileVersion;
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;  // hash of the hashes of the chunks
  uint64_t header_hash = 0;   // hash of the header in which this field is 0
  uint64_t key_bytes = 0;
  std::array<char, kMostKeyBytes> key{};
  std::array<char, 48> unused{};
};
static_assert(sizeof(Header) == 4096);

std::span<const std::byte> bytes_of(const Header& header) {
  return {reinterpret_cast<const std::byte*>(&header), sizeof(Header)};
}

std::span<const std::byte> bytes_of(const std::vector<uint64_t>& hashes) {
  return {reinterpret_cast<const std::byte*>(hashes.data()), hashes.size() * sizeof(uint64_t)};
}

uint64_t hash_of(Header header) {
  header.header_hash = 0;
  return hash64(bytes_of(header));
}

Header header_for(const std::string& key, size_t payload_bytes, uint64_t payload_hash) {
  Header header;
  header.payload_bytes = payload_bytes;
  header.payload_hash = payload_hash;
  header.key_bytes = std::min(key.size(), kMostKeyBytes);
  std::copy_n(key.begin(), header.key_bytes, header.key.begin());
  header.header_hash = hash_of(header);
  return header;
}

uint64_t payload_hash(const MappedFile& file, ThreadPool& pool) {
  const auto payload = file.bytes().subspan(sizeof(Header));
  std::vector<uint64_t> hashes((payload.size() + kChunk - 1) / kChunk);
  pool.parallel_for(static_cast<int64_t>(hashes.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t at = i * kChunk;
      const size_t n = std::min(kChunk, payload.size() - at);
      file.populate(sizeof(Header) + at, sizeof(Header) + at + n);
      hashes[i] = hash64(payload.subspan(at, n));
    }
  });
  return hash64(bytes_of(hashes));
}

}  // namespace

// -- reading ------------------------------------------------------------------------------------

PackedReader::PackedReader(std::shared_ptr<const MappedFile> file, std::unique_ptr<ThreadPool> pool)
    : file_(std::move(file)), pool_(std::move(pool)), at_(sizeof(Header)) {}

std::optional<PackedReader> PackedReader::open(const std::string& path, const std::string& key,
                                               int n_threads) {
  std::string problem;
  auto file = MappedFile::open(path, &problem);
  if (!problem.empty()) throw PackedFileError{problem};
  if (file == nullptr) return std::nullopt;
  PackedReader reader(std::move(file), std::make_unique<ThreadPool>(n_threads));
  try {
    reader.check(key);
  } catch (const PackedFileError& error) {
    throw PackedFileError{path + ": " + error.problem};
  }
  reader.is_mapped_ = reader.file_->in_huge_pages();
  return reader;
}

void PackedReader::check(const std::string& key) const {
  const auto bytes = file_->bytes();
  if (bytes.size() < sizeof(Header)) throw PackedFileError{"is shorter than its header"};
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  const bool is_ours = header.magic == kMagic && header.byte_order == kByteOrder &&
                       header.version == kPackedFileVersion;
  if (!is_ours) throw PackedFileError{"is no file of packed weights of this version"};
  // Every field except the payload hash is known in advance, so the header is compared as a whole.
  const size_t payload_bytes = bytes.size() - sizeof(Header);
  const Header expected = header_for(key, payload_bytes, header.payload_hash);
  if (std::memcmp(&header, &expected, sizeof(Header)) != 0) {
    throw PackedFileError{"is damaged, cut short or made for other weights"};
  }
  if (payload_hash(*file_, *pool_) != header.payload_hash) {
    throw PackedFileError{"is damaged: its checksum does not match"};
  }
}

AlignedBuffer PackedReader::take(size_t bytes) {
  if (bytes > file_->bytes().size() - at_) throw PackedFileError{"holds less than the weights"};
  const auto from = file_->bytes().subspan(at_, bytes);
  at_ = std::min(file_->bytes().size(), at_ + (bytes + kLine - 1) / kLine * kLine);
  if (is_mapped_) return AlignedBuffer::borrowed(from.data(), bytes, file_);
  AlignedBuffer copy(bytes);
  const auto n_chunks = static_cast<int64_t>((bytes + kChunk - 1) / kChunk);
  pool_->parallel_for(n_chunks, 1, [&](int64_t begin, int64_t end, int) {
    const size_t first = static_cast<size_t>(begin) * kChunk;
    const size_t last = std::min(bytes, static_cast<size_t>(end) * kChunk);
    std::memcpy(copy.as<std::byte>() + first, from.data() + first, last - first);
    drop_mapped_pages(from.subspan(first, last - first));
  });
  return copy;
}

void PackedReader::expect_end() const {
  if (at_ != file_->bytes().size()) throw PackedFileError{"holds more than the weights"};
}

// -- writing ------------------------------------------------------------------------------------

PackedWriter::PackedWriter(const std::string& path, const std::string& key, size_t expected)
    : file_(path), key_(key) {
  if (file_.room() < expected + kLeaveFree) {
    constexpr size_t kMB = 1'000'000;
    file_.give_up("needs " + std::to_string(expected / kMB) + " MB, " +
                  std::to_string(kLeaveFree / kMB) +
                  " MB must stay free, and the file system has " +
                  std::to_string(file_.room() / kMB) + " MB left");
  }
  file_.write(bytes_of(Header{}));  // reserves space for the header, which commit() writes
}

void PackedWriter::put(const AlignedBuffer& buffer) {
  const std::span<const std::byte> bytes(buffer.as<std::byte>(), buffer.bytes());
  const size_t whole = bytes.size() / kLine * kLine;
  put_blocks(bytes.first(whole));
  if (whole == bytes.size()) return;
  std::array<std::byte, kLine> last{};
  std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end(), last.begin());
  put_blocks(last);
}

void PackedWriter::put_flag(bool flag) {
  AlignedBuffer buffer(1);
  *buffer.as<std::byte>() = std::byte{flag};
  put(buffer);
}

void PackedWriter::put_blocks(std::span<const std::byte> bytes) {
  if (!file_.is_open()) return;
  file_.write(bytes);
  payload_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kChunk - in_chunk_));
    chunk_.update(piece);
    in_chunk_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (in_chunk_ == kChunk) end_chunk();
  }
}

void PackedWriter::end_chunk() {
  chunk_hashes_.push_back(chunk_.digest());
  chunk_ = Hash64();
  in_chunk_ = 0;
}

void PackedWriter::commit() {
  if (in_chunk_ != 0) end_chunk();
  file_.overwrite(0, bytes_of(header_for(key_, payload_bytes_, hash64(bytes_of(chunk_hashes_)))));
  file_.commit();
}

}  // namespace pb
