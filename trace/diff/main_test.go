package diff

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
