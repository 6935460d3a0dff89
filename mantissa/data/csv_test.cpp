#include "mantissa/data/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::csv_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

CsvTable parse(const std::string& text, const CsvOptions& options = {}) {
  return parse_csv(text, options, "f.csv");
}
std::string refused(const std::string& text, const CsvOptions& options = {}) {
  return error_of([&] { parse(text, options); });
}

TEST(Csv, NumbersAndNamedClasses) {
  const CsvTable table = parse("a,b,kind\n1,2.5,cat\n-3e2,4,ant\n0,0,cat\n");
  EXPECT_TRUE(table.data.equal(torch::tensor({1.0, 2.5, -300.0, 4.0, 0.0, 0.0}, at::kFloat).view({3, 2})));
  EXPECT_TRUE(table.target.equal(torch::tensor({1, 0, 1}))) << "in the order of their names";
  EXPECT_THAT(table.classes, ElementsAre("ant", "cat"));
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
}

TEST(Csv, TheTargetIsAnyColumnAndMayHaveNumbers) {
  const CsvTable table = parse("y;x\n2;0.5\n0;1.5", {.target = "y", .separator = ';'});
  EXPECT_TRUE(table.target.equal(torch::tensor({2, 0})));
  EXPECT_THAT(table.classes, ElementsAre("0", "1", "2")) << "a class may have no row";
  EXPECT_EQ(table.data.sizes(), at::IntArrayRef({2, 1}));
  const CsvTable bare = parse("5\t1\n6\t0\n", {.target = "1", .separator = '\t', .has_header = false});
  EXPECT_TRUE(bare.data.equal(torch::tensor({5.0F, 6.0F}).view({2, 1})));
  EXPECT_THAT(bare.columns, ElementsAre("0"));
  const CsvTable mixed = parse("x,y\n1,1\n2,-1\n");
  EXPECT_THAT(mixed.classes, ElementsAre("-1", "1")) << "a negative number is a name";
}

TEST(Csv, QuotesLineEndsAndAMarkAreThoseOfSpreadsheets) {
  const CsvTable table =
      parse("\xEF\xBB\xBF\"a, b\",\"the \"\"kind\"\"\"\r\n\"1\",\"two\nlines\"\r\n\r\n2,x\r\n");
  EXPECT_THAT(table.columns, ElementsAre("a, b"));
  EXPECT_THAT(table.classes, ElementsAre("two\nlines", "x"));
  EXPECT_TRUE(table.data.equal(torch::tensor({1.0F, 2.0F}).view({2, 1})));
}

TEST(Csv, ErrorsNameLineAndColumn) {
  EXPECT_THAT(refused("a,b\n1,x\nno,y\n"), HasSubstr("'f.csv', line 3, column 'a': 'no' is no number"));
  EXPECT_THAT(refused("a,b\n1,\"x\ny\"\n,z\n"), HasSubstr("line 4, column 'a': ''"));
  for (const char* const bad : {"nan", "inf", "1e39", " 1", "1 "})
    EXPECT_THAT(refused("a,b\n" + std::string(bad) + ",x\n"), HasSubstr("is no number that float32 holds"))
        << bad;
  EXPECT_THAT(refused("a,b\n1,x\n1\n"), HasSubstr("line 3 has 1 fields, and the table has 2 columns"));
  EXPECT_THAT(refused("a,b\n1,2,3\n"), HasSubstr("line 2 has 3 fields"));
  EXPECT_THAT(refused("a,b\n\"1\"2,x\n"), HasSubstr("line 2, field 1: text follows"));
  EXPECT_THAT(refused("a,b\n1,\"x"), HasSubstr("line 2: a quoted field has no end"));
  EXPECT_THAT(refused("a,b\n"), HasSubstr("has no row"));
  EXPECT_THAT(refused(""), HasSubstr("is empty"));
  EXPECT_THAT(refused("\n\n"), HasSubstr("is empty"));
  EXPECT_THAT(refused("a;b\n1;2\n"), AllOf(HasSubstr("has one column"), HasSubstr("only a comma separates")));
  EXPECT_THAT(refused("a,b\n1,2\n", {.separator = ';'}), HasSubstr("only ';' separates columns"));
  EXPECT_THAT(refused("a\tb\n1\t2\n", {.features = {"b"}}),
              AllOf(HasSubstr("no column 'b'"), HasSubstr("only a comma separates columns")));
  EXPECT_THAT(refused("a,kind\n1,x\n", {.target = "kinds"}),
              HasSubstr("no column 'kinds'; did you mean 'kind'?"));
  EXPECT_THAT(refused("a,b\n1,65536\n"), HasSubstr("the class 65536"));
}

TEST(Csv, NamesThatAreReadMustBeUtf8) {
  EXPECT_THAT(refused("x,class\n1,a\n\n2,caf\xe9\n"),
              HasSubstr("line 4: 'caf\xe9' is not UTF-8; save the table as UTF-8"));
  EXPECT_THAT(refused("caf\xe9,class\n1,a\n"), HasSubstr("line 1: 'caf\xe9' is not UTF-8"));
  EXPECT_THAT(refused("x,caf\xe9\n1,a\n"), HasSubstr("line 1: 'caf\xe9' is not UTF-8"));
  EXPECT_THAT(parse("x,class\n1,caf\xc3\xa9\n").classes, ElementsAre("caf\xc3\xa9"));
  const CsvTable some = parse("x,caf\xe9,class\n1,caf\xe9,a\n", {.target = "class", .features = {"x"}});
  EXPECT_THAT(some.columns, ElementsAre("x")) << "the column of other bytes is not read";
}

TEST(Csv, AColumnOfTextMayBeTheTarget) {
  const std::string text = "kind,a\nant,1\n";
  EXPECT_THAT(refused(text), HasSubstr("if the column has the classes, give target 'kind'"));
  EXPECT_EQ(parse(text, {.target = "kind"}).columns, std::vector<std::string>{"a"});
  for (const std::string& other : {refused(text, {.target = "a"}), refused("a,b\n,x\n"),
                                   refused("a,b\n1e999,x\n"), refused("a,b\nnan,x\n")})
    EXPECT_THAT(other, AllOf(HasSubstr("choose other columns as features"), Not(HasSubstr("give target"))));
  EXPECT_THAT(refused(text, {.features = {"kind"}}), HasSubstr("holds; fill it in, or leave the row out"))
      << "a trained model reads the columns that it knows";
}

TEST(Csv, FeaturesSelectAndOrderTheColumns) {
  const std::string text = "id,b,kind,a\nx,2,cat,1\ny,4,ant,3\n";
  const CsvTable bare = parse(text, {.features = {"a", "b"}});
  EXPECT_TRUE(bare.data.equal(torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}).view({2, 2})));
  EXPECT_FALSE(bare.target.defined());
  EXPECT_THAT(bare.columns, ElementsAre("a", "b"));
  EXPECT_TRUE(bare.classes.empty() && bare.target_column.empty());
  const CsvTable table = parse(text, {.target = "kind", .features = {"b"}});
  EXPECT_TRUE(table.data.equal(torch::tensor({2.0F, 4.0F}).view({2, 1})));
  EXPECT_TRUE(table.target.equal(torch::tensor({1, 0})));
  EXPECT_EQ(table.target_column, "kind");
  const CsvTable last = parse("id,b,a,kind\nx,2,1,cat\n", {.features = {"a", "b"}, .last_is_target = true});
  EXPECT_THAT(last.columns, ElementsAre("a", "b"));
  EXPECT_THAT(last.classes, ElementsAre("cat"));
  EXPECT_EQ(parse("x\n1\n", {.features = {"x"}}).data.numel(), 1) << "one column is enough";
  EXPECT_THAT(refused(text, {.features = {"a", "c"}}), HasSubstr("no column 'c'"));
  EXPECT_THAT(refused(text, {.target = "name", .features = {"a"}}), HasSubstr("no column 'name'"));
  EXPECT_THAT(refused(text, {.features = {"a", "b", "a"}}), HasSubstr("'a' is twice among the columns"));
  EXPECT_THAT(refused(text, {.target = "b", .features = {"b"}}),
              HasSubstr("the column 'b' has the classes, and is among features, too"));
  EXPECT_THAT(refused(text, {.features = {"a"}, .last_is_target = true}),
              HasSubstr("the column 'a' has the classes"));
  EXPECT_THAT(refused("a,a\n1,2\n", {.features = {"a"}}), HasSubstr("two columns called 'a'"));
  EXPECT_THAT(refused("a,b,a\n1,2,3\n"), HasSubstr("two columns called 'a'"));
}

TEST(Csv, BlanksAroundANameMayBeLeftOut) {
  const std::string text = "a, b , kind\n1,2,ant\n";
  for (const char* const blank : {"", " "}) {
    const CsvTable table =
        parse(text, {.target = c10::str("kind", blank), .features = {c10::str(blank, "b")}});
    EXPECT_THAT(table.columns, ElementsAre(" b ")) << "the name that the table has";
    EXPECT_EQ(table.target_column, " kind");
    EXPECT_EQ(table.data.item<float>(), 2);
  }
  EXPECT_THAT(parse("a,b\n1,2\n", {.features = {" b "}}).columns, ElementsAre("b")) << "of another table";
  EXPECT_EQ(parse(" b,b\n1,2\n", {.features = {"b"}}).data.item<float>(), 2) << "the same name comes first";
  EXPECT_THAT(refused(" b,b ,x\n1,2,3\n", {.features = {"b"}}),
              HasSubstr("has no column 'b'; its columns are ' b', 'b ', 'x'"));
  EXPECT_THAT(refused(text, {.features = {"b", " b "}}), HasSubstr("is twice among the columns"));
  EXPECT_THAT(refused(",b\n1,2\n", {.features = {" "}}), HasSubstr("no column ' '"))
      << "a column without a name";
}

TEST(Csv, ClassesMayBeGiven) {
  const std::vector<std::string> classes = {"1", "10", "x"};
  const CsvTable table = parse("a,y\n0,10\n0,x\n0,01\n", {.classes = classes});
  EXPECT_TRUE(table.target.equal(torch::tensor({1, 2, 0})));
  EXPECT_EQ(table.classes, classes);
  EXPECT_THAT(refused("a,y\n0,xx\n", {.classes = classes}),
              HasSubstr("the class 'xx', which is none of the 3 classes of the model"));
  EXPECT_THAT(refused("a,y\n0,0\n", {.classes = classes}), HasSubstr("the class '0'"));
  EXPECT_THAT(refused("a,y\n0,\n"), HasSubstr("line 2, column 'y' has no class"));
}

TEST(Csv, ALineOfNumbersIsPerhapsNoHeader) {
  const auto warning = [](const std::string& text, const CsvOptions& options = {}) {
    const Warnings warnings;
    parse(text, options);
    return warnings.texts;
  };
  const auto lost = ElementsAre(HasSubstr("taken for the names of the columns"));
  EXPECT_THAT(warning("1,2\n3,4\n"), lost);
  EXPECT_THAT(warning("5.1,3.5,setosa\n4.9,3,setosa\n"), lost) << "the class is the name of the target";
  EXPECT_THAT(warning("setosa,5.1\nsetosa,4.9\n", {.target = "setosa"}), lost);
  EXPECT_THAT(warning("1,b,c\n3,4,x\n"), IsEmpty());
  EXPECT_THAT(warning("1,2\n3,4\n", {.features = {"1"}}), IsEmpty()) << "that is what it is called";
  EXPECT_THAT(warning("1,2\n3,4\n", {.has_header = false}), IsEmpty());
  EXPECT_THAT(refused("1,1,x\n2,3,y\n"), HasSubstr("in a line above this one if it is a row"));
}

class CsvFile : public InFolder {};

TEST_F(CsvFile, IsRead) {
  write_image_file(folder_ / "a.csv", "x,y\n1,0\n");
  EXPECT_EQ(read_csv(folder_ / "a.csv").target.size(0), 1);
  EXPECT_THAT(error_of([&] { read_csv(folder_ / "b.csv"); }),
              HasSubstr("b.csv': no such file; check the path"));
  EXPECT_THAT(error_of([&] { read_csv(folder_); }), HasSubstr("it is not a regular file"));
  write_image_file(folder_ / "b.csv", "");
  EXPECT_THAT(error_of([&] { read_csv(folder_ / "b.csv"); }), HasSubstr("is empty"));
}

}  // namespace
}  // namespace mantissa::csv_test
