package gorgonia_test

import (
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }
