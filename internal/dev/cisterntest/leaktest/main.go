package leaktest

import (
	"flag"
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/internal/opened"
)

// Main runs the tests of a package. It fails if one leaves a handle, a device, a goroutine or a
// file open. Benchmarks, fuzz targets and tests with -long run without the record of handles,
// because it costs time and some open millions. Race builds have none either (see internal/opened).
func Main(m goleak.TestingM) { goleak.VerifyTestMain(watched{m}) }

type watched struct{ goleak.TestingM }

func (m watched) Run() int {
	if !flag.Parsed() {
		flag.Parse()
	}
	if !set("test.bench") && !set("test.fuzz") && !set("long") {
		opened.Watch()
	}
	before := files()
	code := m.TestingM.Run()
	if code != 0 {
		return code // failed tests leave handles open
	}
	open := more(before, files())
	for range 20 {
		if len(open) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond) // goroutines that end close some
		open = more(before, files())
	}
	for _, l := range append(ofPackages(opened.Take(0)), open...) {
		fmt.Fprintln(os.Stderr, "leaktest:", l)
		code = 1
	}
	return code
}

func set(name string) bool {
	f := flag.Lookup(name)
	return f != nil && f.Value.String() != f.DefValue
}

// ofPackages describes the handles that code of the module, except tests, left open. Devices that
// cisterntest did not open belong to tests of closing, and to tests that make them by the thousand.
func ofPackages(left []opened.Left) (all []string) {
	for _, l := range left {
		if !l.ByTest() {
			all = append(all, l.String())
		}
	}
	return all
}
