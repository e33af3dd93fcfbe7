//go:build cuda

package cuda

import (
	"bytes"
	"regexp"
	"strconv"
)

// Programmatic dependent launches, of GPUs of compute capability 9.0 and up: a kernel's blocks come
// to the multiprocessors while the last ones of the kernel before it on the stream still run, and
// wait there until it is done and its memory is seen. So a part of what a launch costs the device
// passes meanwhile. The wait is the first instruction of every kernel that is loaded as PTX, so that
// nothing else changes for it. Code that was compiled before has the wait if it has waitsMark. The
// driver orders what is no kernel, or is launched by libraries, as ever, and turns the order into
// edges of their own in graphs.

// waitsMark is a kernel that does nothing, of modules whose other kernels all begin with the wait.
// kernels.sh adds it.
const waitsMark = "cistern_waits"

var (
	ptxVersion = regexp.MustCompile(`(?m)^\.version (\d+)\.(\d+)[ \t\r]*$`)
	ptxTarget  = regexp.MustCompile(`(?m)^\.target sm_(\d+)[ \t\r]*$`)
)

// waits leaves it at that: the next kernel's blocks come as this one's leave. With griddepcontrol.launch_dependents they would come where there is room now,
// several to one multiprocessor, and steps took up to 3 % longer than without any of this.
const waits = "\n\tgriddepcontrol.wait;\n"

// dependent is PTX whose kernels wait first; nil where the image is none, or is for GPUs of one kind alone, or knows of such launches itself.
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

// withWaits appends the rest of the PTX, with a wait where the body of each kernel begins. Regular expressions would take 16 ms for a MiB.
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
		declares := line == "" || line == ".visible" || line == ".weak" // and is no comment
		if !declares || body < 0 || rest[at+body] == ';' {
			out, rest = append(out, rest[:at]...), rest[at:]
			continue
		}
		at += body + 1
		out, rest = append(append(out, rest[:at]...), waits...), rest[at:]
	}
}
