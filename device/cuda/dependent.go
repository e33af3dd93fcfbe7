//go:build cuda

package cuda

import (
	"bytes"
	"regexp"
	"strconv"
)

// Programmatic dependent launches, on GPUs of compute capability 9.0 and up: a kernel's blocks are
// placed on the multiprocessors while the last blocks of the stream's previous kernel still run,
// and wait there until that kernel is done and its memory is visible. This hides a part of the
// launch overhead. The wait is the first instruction of every kernel that is loaded as PTX, so that
// kernels see no other difference. Code that was compiled earlier has the wait if it has waitsMark.
// The driver orders operations other than kernels, and kernels launched by libraries, as usual. In
// graphs it turns the order into edges of a separate type.

// waitsMark is an empty kernel in modules whose other kernels all begin with the wait. kernels.sh
// adds it.
const waitsMark = "cistern_waits"

var (
	ptxVersion = regexp.MustCompile(`(?m)^\.version (\d+)\.(\d+)[ \t\r]*$`)
	ptxTarget  = regexp.MustCompile(`(?m)^\.target sm_(\d+)[ \t\r]*$`)
)

// waits does no more than wait: the next kernel's blocks are placed as this kernel's blocks exit.
// With griddepcontrol.launch_dependents they would be placed as soon as they fit, several on one
// multiprocessor, and steps took up to 3 % longer than without dependent launches.
const waits = "\n\tgriddepcontrol.wait;\n"

// dependent returns PTX whose kernels begin with the wait. It returns nil if the image is not PTX,
// is for a single architecture only, or uses griddepcontrol itself.
func dependent(image []byte) []byte {
	version, target := ptxVersion.FindSubmatchIndex(image), ptxTarget.FindSubmatchIndex(image)
	if version == nil || target == nil || bytes.Contains(image, []byte("griddepcontrol")) {
		return nil
	}
	number := func(at []int, i int) int {
		n, _ := strconv.Atoi(string(image[at[2*i]:at[2*i+1]]))
		return n
	}
	out := make([]byte, 0, len(image)+1<<12)
	if out = append(out, image[:version[0]]...); number(version, 1) > 7 || number(version, 1) == 7 && number(version, 2) >= 8 {
		out = append(out, image[version[0]:version[1]]...)
	} else {
		out = append(out, ".version 7.8"...)
	}
	if out = append(out, image[version[1]:target[0]]...); number(target, 1) >= 90 {
		out = append(out, image[target[0]:target[1]]...)
	} else {
		out = append(out, ".target sm_90"...)
	}
	return withWaits(out, image[target[1]:])
}

// withWaits appends the rest of the PTX, with a wait at the start of each kernel's body. Regular
// expressions would take 16 ms for a MiB.
func withWaits(out, rest []byte) []byte {
	entry := []byte(".entry")
	for {
		at := bytes.Index(rest, entry)
		if at < 0 {
			return append(out, rest...)
		}
		line := string(bytes.TrimSpace(rest[bytes.LastIndexByte(rest[:at], '\n')+1 : at]))
		at += len(entry)
		body := bytes.IndexAny(rest[at:], ";{")
		declares := line == "" || line == ".visible" || line == ".weak" // so it is not a comment
		if !declares || body < 0 || rest[at+body] == ';' {
			out, rest = append(out, rest[:at]...), rest[at:]
			continue
		}
		at += body + 1
		out, rest = append(append(out, rest[:at]...), waits...), rest[at:]
	}
}
