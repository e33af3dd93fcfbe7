package cisterntest

import (
	"fmt"
	"os"
	"testing"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
)

// Main runs the tests, and fails if one leaves a device, a handle of one, a goroutine or a file
// open ([leaktest.Main]). The devices in CISTERN_TEST_DEVICE and CISTERN_TEST_RANKS stay open
// meanwhile, so that each test opens them quickly.
func Main(m *testing.M) { leaktest.Main(held{m}) }

type held struct{ *testing.M }

func (m held) Run() int {
	names := ranks()
	if Named() != "" {
		names = append(names, Named())
	}
	return m.with(names)
}

// with runs the tests with devices open.
func (m held) with(names []string) int {
	if len(names) == 0 {
		return m.M.Run()
	}
	dev, err := device.Open(names[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	leaktest.Excuse(dev) // tests share it
	code := m.with(names[1:])
	if err := dev.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
