//go:build cuda

package metric_test

import _ "github.com/cistern-ml/cistern/device/cuda" // CISTERN_TEST_DEVICE may name a GPU
