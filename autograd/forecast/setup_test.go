package forecast_test

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestMain(m *testing.M) {
	if bits.UintSize < 64 {
		fmt.Println("dry devices need addresses of 64 bits")
		return
	}
	cisterntest.Main(m)
}
