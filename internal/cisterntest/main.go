package cisterntest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/device"
)

// Main runs the tests, and fails if goroutines are left. The device that CISTERN_TEST_DEVICE names stays open
// meanwhile: each test opens it again, which is quick then.
func Main(m *testing.M) { goleak.VerifyTestMain(held{m}) }

type held struct{ *testing.M }

func (m held) Run() int {
	if Named() == "" {
		return m.M.Run()
	}
	dev, err := device.Open(Named())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.M.Run()
	if err := dev.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
