package metric_test

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

func TestMain(m *testing.M) { tapetest.Main(m, "../..") }
