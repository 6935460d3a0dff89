// A plugin of clang-tidy that keeps the checks to this tree's code. clang-tidy hides findings in system headers, but
// searches these headers, too: all of libtorch's, for two thirds of its time.
#include <clang-tidy/ClangTidyCheck.h>
#include <clang-tidy/ClangTidyModule.h>
#include <clang-tidy/ClangTidyModuleRegistry.h>
#include <clang/AST/ASTContext.h>
#include <clang/ASTMatchers/ASTMatchFinder.h>
#include <vector>

namespace {

/// Finds nothing. Its match, the root of the tree, precedes the children of the root.
class Scope : public clang::tidy::ClangTidyCheck {
 public:
  using ClangTidyCheck::ClangTidyCheck;

  void registerMatchers(clang::ast_matchers::MatchFinder* finder) override {
    finder->addMatcher(clang::ast_matchers::translationUnitDecl(), this);
  }

  void check(const clang::ast_matchers::MatchFinder::MatchResult& result) override {
    std::vector<clang::Decl*> ours;
    for (clang::Decl* declaration : result.Context->getTranslationUnitDecl()->decls()) {
      const clang::SourceLocation place = result.SourceManager->getExpansionLoc(declaration->getLocation());
      if (place.isValid() && !result.SourceManager->isInSystemHeader(place)) ours.push_back(declaration);
    }
    result.Context->setTraversalScope(ours);
  }
};

struct Module : clang::tidy::ClangTidyModule {
  void addCheckFactories(clang::tidy::ClangTidyCheckFactories& factories) override {
    factories.registerCheck<Scope>("mantissa-scope");
  }
};

const clang::tidy::ClangTidyModuleRegistry::Add<Module> kModule("mantissa", "This tree's code alone");

}  // namespace
