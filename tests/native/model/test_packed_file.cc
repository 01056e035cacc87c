// The file of packed weights: what is written is read, and nothing else is.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"
#include "model/packed_file.h"
#include "temporary_directory.h"

namespace pb::test {
namespace {

constexpr size_t kHeaderBytes = 4096;
const std::string kKey = "checkpoint dtype=bf16 layout=avx2 1";

AlignedBuffer some_buffer(size_t bytes, int salt) {
  AlignedBuffer buffer(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    buffer.as<std::byte>()[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<size_t>(salt));
  }
  return buffer;
}

// One with rests, one that is empty, one of several chunks of 4 MiB.
std::vector<AlignedBuffer> some_buffers(int salt = 0) {
  std::vector<AlignedBuffer> buffers;
  for (size_t bytes : {1u, 64u, 0u, 1000u, 9'000'001u, 320u}) {
    buffers.push_back(some_buffer(bytes, salt + static_cast<int>(buffers.size())));
  }
  return buffers;
}

std::string write(const std::string& path, const std::vector<AlignedBuffer>& buffers,
                  const std::string& key = kKey) {
  PackedWriter writer(path, key, 10'000'000);
  for (const AlignedBuffer& buffer : buffers) writer.put(buffer);
  writer.commit();
  return writer.problem();
}

bool holds(PackedReader& reader, const std::vector<AlignedBuffer>& buffers) {
  bool same = true;
  for (const AlignedBuffer& buffer : buffers) {
    const AlignedBuffer read = reader.take(buffer.bytes());
    same &= read.bytes() == buffer.bytes();
    same &= reinterpret_cast<uintptr_t>(read.as<std::byte>()) % 64 == 0;
    same &= buffer.bytes() == 0 ||
            std::memcmp(read.as<std::byte>(), buffer.as<std::byte>(), buffer.bytes()) == 0;
  }
  return same;
}

// What is wrong with a file; "" where it is taken.
std::string fault(const std::string& path, const std::string& key = kKey) {
  try {
    return PackedReader::open(path, key, 2) ? "" : "not there";
  } catch (const PackedFileError& error) {
    EXPECT(error.problem.starts_with(path + ": "));
    return error.problem.substr(path.size() + 2);
  }
}

}  // namespace

TEST(what_is_written_is_read) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  EXPECT_EQ(fault(path), "not there");
  const auto buffers = some_buffers();
  EXPECT_EQ(write(path, buffers), "");
  EXPECT_EQ(directory.names().size(), 1u);
  for (int n_threads : {1, 2, 5}) {
    auto reader = PackedReader::open(path, kKey, n_threads);
    EXPECT(reader && holds(*reader, buffers));
    reader->expect_end();
  }
}

TEST(buffers_outlive_the_reader_and_the_file) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  write(path, some_buffers());
  AlignedBuffer first, other;
  {
    auto reader = PackedReader::open(path, kKey, 1);
    first = reader->take(1);
    other = reader->take(64);
  }
  write(path, some_buffers(1));  // takes its place for those who open it from now on
  std::filesystem::remove(path);
  EXPECT_EQ(std::memcmp(first.as<std::byte>(), some_buffer(1, 0).as<std::byte>(), 1), 0);
  EXPECT_EQ(std::memcmp(other.as<std::byte>(), some_buffer(64, 1).as<std::byte>(), 64), 0);
}

TEST(a_walk_of_another_length_is_refused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  std::vector<AlignedBuffer> buffers;
  buffers.push_back(some_buffer(100, 0));
  write(path, buffers);
  const auto problem = [&](const std::function<void(PackedReader&)>& walk) {
    auto reader = PackedReader::open(path, kKey, 1);
    try {
      walk(*reader);
    } catch (const PackedFileError& error) {
      return error.problem;
    }
    return std::string();
  };
  EXPECT_EQ(problem([](PackedReader& r) { r.take(100), r.expect_end(); }), "");
  EXPECT_EQ(problem([](PackedReader& r) { r.take(129); }), "holds less than the weights");
  EXPECT_EQ(problem([](PackedReader& r) { r.take(100), r.take(1); }),
            "holds less than the weights");
  EXPECT_EQ(problem([](PackedReader& r) { r.take(~size_t{0}); }), "holds less than the weights");
  EXPECT_EQ(problem([](PackedReader& r) { r.take(64), r.expect_end(); }),
            "holds more than the weights");
}

// Every byte of the header is tried on a small file, since each try writes and reads all of it; the
// bytes behind it on one of several chunks.
TEST(damage_anywhere_is_found) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  for (const auto& [body, first, step] : {std::tuple{1000u, size_t{0}, size_t{1}},
                                          std::tuple{5'000'000u, kHeaderBytes, size_t{123'457}}}) {
    std::vector<AlignedBuffer> buffers;
    buffers.push_back(some_buffer(body, 0));
    write(path, buffers);
    const std::string whole = read_file(path);
    std::string bytes = whole;
    for (size_t at = first; at < bytes.size(); at += step) {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
      write_file(path, bytes);
      if (fault(path).empty()) fail(__FILE__, __LINE__, "not found: byte " + std::to_string(at));
      bytes[at] = whole[at];
    }
    write_file(path, whole);
    EXPECT_EQ(fault(path), "");
  }
}

TEST(another_length_is_found) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  std::vector<AlignedBuffer> buffers;
  buffers.push_back(some_buffer(5'000'000, 0));
  write(path, buffers);
  const std::string whole = read_file(path);
  for (size_t length : {size_t{0}, size_t{1}, size_t{48}, kHeaderBytes - 1, kHeaderBytes,
                        kHeaderBytes + 64, whole.size() - 1}) {
    write_file(path, whole.substr(0, length));
    EXPECT(!fault(path).empty());
  }
  write_file(path, whole + "x");
  EXPECT_EQ(fault(path), "is damaged, cut short or made for other weights");
  write_file(path, std::string(whole.size(), '\0'));
  EXPECT_EQ(fault(path), "is no file of packed weights of this version");
  write_file(path, std::string(whole.size(), '\xff'));
  EXPECT_EQ(fault(path), "is no file of packed weights of this version");
  write_file(path, whole);
  EXPECT_EQ(fault(path), "");
}

TEST(a_file_for_another_key_is_refused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  write(path, some_buffers());
  for (const std::string& key :
       {std::string(), kKey + " ", kKey.substr(1), std::string(10'000, 'x')}) {
    EXPECT_EQ(fault(path, key), "is damaged, cut short or made for other weights");
  }
}

TEST(a_full_file_system_is_not_written_to) {
  const TemporaryDirectory directory;
  PackedWriter writer(directory.file("a.packed"), kKey, size_t{1} << 60);
  writer.put(some_buffer(100, 0));
  writer.commit();
  EXPECT(writer.problem().find("MB, 1073 MB must stay free, and the file system has") !=
         std::string::npos);
  EXPECT_EQ(directory.names().size(), 0u);
}

TEST(processes_that_write_at_once_leave_one_whole_file) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a.packed");
  const auto buffers = some_buffers();
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 0;
      for (int round = 0; round < 5; ++round) {
        if (!write(path, buffers).empty()) status = 1;
        auto reader = PackedReader::open(path, kKey, 1);
        if (!reader || !holds(*reader, buffers)) status = 1;
      }
      _exit(status);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(directory.names().size(), 1u);
}

}  // namespace pb::test

PB_TEST_MAIN()
