#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace mantissa {

/// Drops the dispatcher's warning about the first kernel in a process that replaces another one, because
/// replacing is intended here. Other warnings are passed on. The dispatcher's own "once" is not used up: it
/// still warns about the first replacement by other code.
class WithoutOverrideWarning final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos)
      outer_.process(warning);
  }

 private:
  c10::WarningHandler& outer_ = *c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarnAlways not_once_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};  // for this thread only
};

}  // namespace mantissa
