// TruncationGuard: a truncated file reads as zeros, and other faults stay as they were.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <span>
#include <string>

#include "check.h"
#include "os/truncation_guard.h"
#include "temporary_directory.h"

namespace pb::test {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

// A mapped file of kBytes bytes 'x'.
class Mapped {
 public:
  explicit Mapped(const std::string& path) : path_(path) {
    write_file(path, std::string(kBytes, 'x'));
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    data_ = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
  }
  ~Mapped() { munmap(data_, kBytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  void truncate(off_t size) const { EXPECT_EQ(::truncate(path_.c_str(), size), 0); }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), kBytes};
  }
  size_t count() const { return std::ranges::count(bytes(), std::byte{'x'}); }
  // Reads the first byte, although nobody uses it.
  void touch() const { (void)*static_cast<const volatile std::byte*>(data_); }

 private:
  std::string path_;
  void* data_;
};

// Returns the signal that ends a child process which runs `body`; 0 if it ends by itself.
template <typename Body>
int signal_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGBUS, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST(what_is_past_the_end_of_a_truncated_file_reads_as_zeros) {
  const TemporaryDirectory directory;
  const Mapped first(directory.file("a")), second(directory.file("b")), whole(directory.file("c"));
  const TruncationGuard guard({first.bytes(), second.bytes(), whole.bytes()});
  first.truncate(0);
  second.truncate(8192);
  EXPECT_EQ(first.count(), 0u);
  EXPECT_EQ(second.count(), 8192u);
  EXPECT_EQ(whole.count(), kBytes);
}

TEST(what_no_guard_has_ends_the_process_as_before) {
  const TemporaryDirectory directory;
  const Mapped guarded(directory.file("a")), other(directory.file("b"));
  guarded.truncate(0);
  other.truncate(0);
  EXPECT_EQ(signal_of([&] {
              const TruncationGuard guard({guarded.bytes()});
              guarded.touch();
            }),
            0);
  EXPECT_EQ(signal_of([&] {
              const TruncationGuard guard({guarded.bytes()});
              other.touch();
            }),
            SIGBUS);
  EXPECT_EQ(signal_of([&] {
              {
                const TruncationGuard guard({guarded.bytes()});
              }
              guarded.touch();
            }),
            SIGBUS);
  EXPECT_EQ(signal_of([&] {
              const TruncationGuard guard({guarded.bytes()});
              {
                const TruncationGuard inner({other.bytes()});
              }
              guarded.touch();
            }),
            0);
}

TEST(the_handler_that_was_there_gets_other_faults_and_comes_back) {
  const TemporaryDirectory directory;
  const Mapped guarded(directory.file("a")), other(directory.file("b"));
  other.truncate(0);
  const auto exit_with_7 = [](int) { _exit(7); };
  for (const bool is_within : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGBUS, exit_with_7);
      {
        const TruncationGuard guard({guarded.bytes()});
        if (is_within) other.touch();
      }
      other.touch();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
