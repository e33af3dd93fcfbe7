//go:build cuda

package cuda

import (
	"bytes"
	"regexp"
	"strconv"
)

// Programmatic dependent launches, of GPUs of compute capability 9.0 and up: a kernel's blocks come to the multiprocessors while the last ones of the
// kernel before it on the stream still run, and wait there until it is done and its memory is seen. So a part of what a launch costs the device passes meanwhile. The wait is
// the first instruction of every kernel that is loaded as PTX, so that nothing else changes for it. The driver orders what is no kernel, or is launched by
// libraries, as ever, and turns the order into edges of their own in graphs.

var (
	ptxVersion = regexp.MustCompile(`(?m)^\.version (\d+)\.(\d+)[ \t\r]*$`)
	ptxTarget  = regexp.MustCompile(`(?m)^\.target sm_(\d+)[ \t\r]*$`)
	ptxEntry   = regexp.MustCompile(`(?m)^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.entry[ \t][^;{]*\{`)
)

// waits leaves it at that: the next kernel's blocks come as this one's leave. With griddepcontrol.launch_dependents they would come where there is room now,
// several to one multiprocessor, and steps took up to 4 % longer than without any of this.
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
	return append(out, ptxEntry.ReplaceAll(image[target[1]:], []byte("$0"+waits))...)
}
