// NewFile: whole under its name or not there; MappedFile: whose files it takes.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <span>
#include <string>

#include "check.h"
#include "os/mapped_file.h"
#include "os/new_file.h"
#include "temporary_directory.h"

namespace pb::test {
namespace {

// What open() says of a file; "" where it takes it.
std::string fault(const std::string& path) {
  std::string problem;
  const auto file = MappedFile::open(path, &problem);
  EXPECT_EQ(file == nullptr, !problem.empty());
  return problem.empty() ? "" : problem.substr(path.size());
}

}  // namespace

TEST(a_file_appears_with_commit_and_for_its_owner_alone) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  {
    NewFile file(path);
    file.write(bytes("0123456789"));
    file.overwrite(2, bytes("xy"));
    EXPECT(!std::filesystem::exists(path));
    file.commit();
    EXPECT_EQ(file.problem(), "");
  }
  EXPECT_EQ(read_file(path), "01xy456789");
  struct stat status{};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  EXPECT_EQ(directory.names().size(), 1u);
}

TEST(without_commit_what_was_there_stays_and_nothing_is_left) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  write_file(path, "before");
  {
    NewFile file(path);
    file.write(bytes("after"));
  }
  EXPECT_EQ(read_file(path), "before");
  {
    NewFile file(path);
    file.give_up("enough");
    file.write(bytes("after"));
    file.commit();
    EXPECT_EQ(file.problem(), path + ": enough");
  }
  EXPECT_EQ(read_file(path), "before");
  EXPECT_EQ(directory.names().size(), 1u);
}

TEST(a_write_that_fails_is_told_and_leaves_nothing) {
  const TemporaryDirectory directory;
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small = {4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  NewFile file(directory.file("a"));
  file.write(bytes(std::string(4096, 'x')));
  EXPECT_EQ(file.problem(), "");
  file.write(bytes("more"));
  file.commit();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT(file.problem().ends_with(": File too large"));
  EXPECT_EQ(directory.names().size(), 0u);
}

TEST(what_is_written_in_many_pieces_is_one) {
  const TemporaryDirectory directory;
  NewFile file(directory.file("a"));
  std::string expected;
  for (size_t i = 0; i < 23; ++i) {
    const std::string text(i * 100'003, static_cast<char>('a' + i));
    file.write(bytes(text));
    expected += text;
  }
  file.overwrite(0, bytes("start"));
  file.commit();
  EXPECT_EQ(file.problem(), "");
  EXPECT(read_file(directory.file("a")) == "start" + expected.substr(5));
}

TEST(no_directory_is_told) {
  NewFile file("/nonexistent/directory/a");
  file.write(bytes("x"));
  file.commit();
  EXPECT(file.problem().ends_with("No such file or directory"));
  EXPECT(NewFile("/tmp").room() > 0);
}

TEST(only_plain_files_of_this_user_are_mapped) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  std::string problem = "old";
  EXPECT(MappedFile::open(path, &problem) == nullptr);
  EXPECT_EQ(problem, "");
  write_file(path, "text");
  EXPECT_EQ(fault(path), "");
  std::filesystem::create_symlink(path, directory.file("link"));
  EXPECT_EQ(fault(directory.file("link")), ": Too many levels of symbolic links");
  EXPECT_EQ(fault(directory.path()), ": is not a plain file");
  mkfifo(directory.file("pipe").c_str(), 0600);
  EXPECT_EQ(fault(directory.file("pipe")), ": is not a plain file");
  write_file(directory.file("empty"), "");
  EXPECT_EQ(fault(directory.file("empty")), ": is empty");
  chmod(path.c_str(), 0620);
  EXPECT_EQ(fault(path), ": may be written by other users");
  chmod(path.c_str(), 0602);
  EXPECT_EQ(fault(path), ": may be written by other users");
  chmod(path.c_str(), 0644);
  EXPECT_EQ(fault(path), "");
  if (geteuid() == 0) {
    EXPECT_EQ(chown(path.c_str(), 1, 1), 0);
    EXPECT_EQ(fault(path), ": belongs to another user");
  }
}

TEST(dropped_pages_are_read_again) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  const std::string text(100'000, 'y');
  write_file(path, text);
  std::string problem;
  const auto file = MappedFile::open(path, &problem);
  file->populate(0, text.size());
  file->populate(5000, 1 << 30);
  drop_mapped_pages(file->bytes().subspan(123, 50'000));
  drop_mapped_pages({});
  const auto* mapped = reinterpret_cast<const char*>(file->bytes().data());
  EXPECT_EQ(std::string(mapped, file->bytes().size()), text);
}

}  // namespace pb::test

PB_TEST_MAIN()
