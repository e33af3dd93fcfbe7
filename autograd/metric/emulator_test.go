//go:build emulator

package metric_test

import _ "github.com/cistern-ml/cistern/internal/dev/cisterntest/emulator" // CISTERN_TEST_DEVICE may be "emulated"
