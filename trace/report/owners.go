package report

import (
	"encoding/binary"
	"strings"

	"github.com/cistern-ml/cistern/internal/callframe"
)

// owners numbers owners, stacks and frames, so that a page has each of them once.
type owners struct {
	list    []owner
	byOwner map[owner]int32
	stacks  [][]int32 // frames, the innermost first
	sites   []int32   // of each stack: its call site, -1: none
	byStack map[string]int32
	frames  []frame
	byFrame map[frame]int32
	foreign []bool // of each frame

	labelled bool // some owner has a category or module
	stacked  bool // some owner has a stack
}

// owner is the requester of memory. Category is negative if there is no label.
type owner struct {
	category int8
	module   string
	tags     string
	stack    int32 // -1: none
}

// frame is a line of the program.
type frame struct {
	function, file string
	line           int
}

// unlabelled is the category in recordings without labels, and before that of blocks from before
// the recording.
const (
	unlabelled int8 = -1
	before     int8 = -2
)

func newOwners() *owners {
	return &owners{byOwner: make(map[owner]int32), byStack: make(map[string]int32), byFrame: make(map[frame]int32)}
}

// add returns the owner's number.
func (o *owners) add(who owner) int32 {
	id, ok := o.byOwner[who]
	if !ok {
		id = int32(len(o.list))
		o.byOwner[who], o.list = id, append(o.list, who)
		o.labelled = o.labelled || who.category > 0 || who.module != ""
		o.stacked = o.stacked || who.stack >= 0
	}
	return id
}

// stack returns the number of a stack from the user's line on, the innermost frame first; -1 for
// none.
func (o *owners) stack(frames []frame) int32 {
	frames = callframe.FromUser(frames, func(f frame) (string, string) { return f.function, f.file })
	if len(frames) == 0 {
		return -1
	}
	ids := make([]int32, len(frames))
	key := make([]byte, 0, 4*len(frames))
	for i, f := range frames {
		id, ok := o.byFrame[f]
		if !ok {
			id = int32(len(o.frames))
			o.byFrame[f], o.frames, o.foreign = id, append(o.frames, f), append(o.foreign, f.foreign())
		}
		ids[i] = id
		key = binary.LittleEndian.AppendUint32(key, uint32(id))
	}
	id, ok := o.byStack[string(key)]
	if !ok {
		id = int32(len(o.stacks))
		o.byStack[string(key)] = id
		o.stacks, o.sites = append(o.stacks, ids), append(o.sites, o.site(ids))
	}
	return id
}

// site returns the innermost frame of the user's own code, or the innermost one if all are of
// libraries.
func (o *owners) site(ids []int32) int32 {
	for _, id := range ids {
		if !o.foreign[id] {
			return id
		}
	}
	return ids[0]
}

// merged returns for each owner the first owner that differs from it only in the calls around the
// call site.
func (o *owners) merged() []int32 {
	first := make(map[owner]int32, len(o.list))
	same := make([]int32, len(o.list))
	for i, who := range o.list {
		if who.stack >= 0 {
			who.stack = o.sites[who.stack]
		}
		if _, ok := first[who]; !ok {
			first[who] = int32(i)
		}
		same[i] = first[who]
	}
	return same
}

// libraries are parts of file names outside of the user's code: of Python, and of PyTorch if it is
// used from its sources. A user's program may itself be in a folder named torch.
var libraries = []string{"/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3",
	"/torch/_", "/torch/autograd/", "/torch/csrc/", "/torch/cuda/", "/torch/distributed/", "/torch/functional.py", "/torch/fx/", "/torch/jit/", "/torch/nn/", "/torch/optim/", "/torch/utils/"}

// foreign reports whether the frame is outside of the user's code.
func (f frame) foreign() bool {
	if !callframe.IsUser(f.function, f.file) {
		return true
	}
	for _, l := range libraries {
		if strings.Contains(f.file, l) {
			return true
		}
	}
	return f.file == "??" || f.file == "" || strings.HasSuffix(f.file, ".cpp") || strings.HasSuffix(f.file, ".h") || strings.HasSuffix(f.file, ".so")
}
