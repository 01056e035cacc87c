// What files take of the system, which is another one on Windows, and files that are mapped there.
#include <cerrno>
#include <limits>
#include <span>
#include <string>

#include "check.h"
#include "os/file_calls.h"
#include "os/mapped_file.h"
#include "temporary_directory.h"

using namespace pb;
using namespace pb::test;

namespace {

std::string mapped(const std::string& path) {
  std::string problem;
  const auto file = MappedFile::open(path, &problem);
  if (file == nullptr) return "problem: " + problem.substr(problem.empty() ? 0 : path.size());
  file->populate(0, file->bytes().size());
  drop_mapped_pages(file->bytes());
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

}  // namespace

TEST(a_file_is_made_once_and_takes_bytes_at_its_end_and_anywhere) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("\xc3\xa9\xe2\x82\xac");
  const int file = file_calls::open_new(path);
  EXPECT(file >= 0);
  EXPECT_EQ(file_calls::open_new(path), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(file_calls::write(file, bytes("01\n3\r\n6789")), 10);
  EXPECT(file_calls::write_at(file, 2, bytes("xy")));
  EXPECT_EQ(file_calls::write(file, bytes("\x1a!")), 2);
  EXPECT(file_calls::room(file) > 2);
  EXPECT(file_calls::room(file) < std::numeric_limits<size_t>::max());
  EXPECT(file_calls::close(file));
  EXPECT_EQ(mapped(path), "01xy\r\n6789\x1a!");
}

TEST(a_file_takes_the_place_of_another_one) {
  const TemporaryDirectory directory;
  write_file(directory.file("old"), "before");
  write_file(directory.file("new"), "after");
  EXPECT(file_calls::replace(directory.file("new"), directory.file("old")));
  EXPECT_EQ(mapped(directory.file("old")), "after");
  EXPECT_EQ(directory.names().size(), 1u);
  EXPECT(!file_calls::replace(directory.file("none"), directory.file("old")));
  EXPECT(errno != 0);
  file_calls::remove(directory.file("old"));
  file_calls::remove(directory.file("none"));
  EXPECT(directory.names().empty());
}

TEST(what_cannot_be_mapped_is_said_and_what_is_not_there_is_not) {
  const TemporaryDirectory directory;
  write_file(directory.file("empty"), "");
  EXPECT_EQ(mapped(directory.file("empty")), "problem: : is empty");
  EXPECT_EQ(mapped(directory.path()), "problem: : is not a plain file");
  EXPECT_EQ(mapped(directory.file("none")), "problem: ");
  EXPECT_EQ(mapped(directory.file("none/none")), "problem: ");
}

PB_TEST_MAIN()
