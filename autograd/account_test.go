package autograd_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// account is the test's own account of the holders of memory. It does not read labels. The category
// follows from the functions in the stack of an allocation, the module from the test's calls, and
// the step from the test's count. It serves one goroutine at a time.
type account struct {
	mu     sync.Mutex
	module string // where the test is now
	step   int64
	live   map[uint64]holding // by serial
	total  int64
	peak   int64
	atPeak map[owner]int64 // bytes

	nodes []string // the modules of the tape's nodes
}

type owner struct {
	module   string
	category memcache.Category
	step     int64
}

type holding struct {
	owner
	bytes int64
}

func newAccount() *account { return &account{live: map[uint64]holding{}} }

// categories are by a function in the stack. The first one found counts.
var categories = []struct {
	function string
	memcache.Category
}{
	{"tensor.(*Runtime).allocScratch", memcache.CategoryWorkspace},
	{"tensor.(*env).Scratch", memcache.CategoryWorkspace},
	{"tensor.(*env).Keep", memcache.CategoryWorkspace},
	{"tensor.(*Runtime).faultWord", memcache.CategoryWorkspace},
	{"autograd/optim.(*Base).prepare", memcache.CategoryOptimizerState},
	{"autograd.(*Tape).backward", memcache.CategoryGradient},
	{"autograd/nn.(*Initializer).parameter", memcache.CategoryParameter},
	{"autograd/nn.(*Initializer).buffer", memcache.CategoryParameter},
	{"autograd.Upload", memcache.CategoryInput},
	{"autograd/nn.(*Initializer).Tensor", memcache.CategoryInput},
	{"autograd/nn.(*Initializer).Labels", memcache.CategoryInput},
	{"autograd.(*Tape).", memcache.CategoryActivation},
}

func (a *account) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if op != memcache.OpAlloc && op != memcache.OpFree {
		return ctx, nil
	}
	return ctx, entry{a}
}

type entry struct{ *account }

func (e entry) End(info memcache.OpInfo) {
	a := e.account
	if info.Err != nil || info.Bytes == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if info.Op == memcache.OpFree {
		a.total -= a.live[info.Serial].bytes
		delete(a.live, info.Serial)
		return
	}
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var stack strings.Builder
	for {
		f, more := frames.Next()
		fmt.Fprintln(&stack, f.Function)
		if !more {
			break
		}
	}
	h := holding{owner{module: a.module, step: a.step}, info.Bytes}
	for _, c := range categories {
		if strings.Contains(stack.String(), "/cistern/"+c.function) {
			h.category = c.Category
			break
		}
	}
	if h.category == memcache.CategoryWorkspace && (strings.Contains(stack.String(), "faultWord") || strings.Contains(stack.String(), "(*env).Keep")) {
		h.module, h.step = "", 0 // for all operations
	}
	a.live[info.Serial] = h
	if a.total += h.bytes; a.total > a.peak {
		a.peak, a.atPeak = a.total, a.now()
	}
}

func (a *account) now() map[owner]int64 {
	sums := map[owner]int64{}
	for _, h := range a.live {
		sums[h.owner] += h.bytes
	}
	return sums
}

// begin starts a peak, as ResetPeakStats does.
func (a *account) begin(c *memcache.Cache) {
	c.ResetPeakStats()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peak, a.atPeak = a.total, a.now()
}

// named counts the memory of a parameter or a buffer in the module of its name.
func (a *account) named(name string, x *tensor.Tensor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.live[x.Block().Serial()]
	h.module = name[:max(0, strings.LastIndex(name, "."))]
	a.live[x.Block().Serial()] = h
}

// in runs a part of the model. Its allocations, and those of the backward steps that it records,
// count in the module.
func (a *account) in(t *autograd.Tape, module string, f func() *autograd.Variable) *autograd.Variable {
	before := a.module
	a.module = module
	defer func() { a.module = before }()
	from := len(autograd.NodesOf(t))
	y := f()
	a.nodes = append(a.nodes, make([]string, max(0, len(autograd.NodesOf(t))-len(a.nodes)))...)
	for i := from; i < len(autograd.NodesOf(t)); i++ {
		if a.nodes[i] == "" {
			a.nodes[i] = module
		}
	}
	return y
}

// backward sets the account's module while the backward step of a node runs.
func (a *account) backward(t *autograd.Tape) {
	a.nodes = append(a.nodes, make([]string, len(autograd.NodesOf(t))-len(a.nodes))...)
	for i := range autograd.NodesOf(t) {
		module := a.nodes[i]
		autograd.WatchStep(&autograd.NodesOf(t)[i], func() (done func()) {
			a.module = module
			return func() { a.module = "" }
		})
	}
	a.nodes = nil
}

// agrees compares a profile with the account.
func (a *account) agrees(t *testing.T, p memcache.Profile, want map[owner]int64, when string) {
	t.Helper()
	got := map[owner]int64{}
	for _, h := range p.Holdings {
		got[owner{memcache.ModulePath(h.Module), h.Category, h.Step}] += h.Bytes
	}
	for k := range maps.Keys(want) {
		require.Equal(t, want[k], got[k], "%s: bytes of %+v; the profile has %v, the account %v", when, k, got, want)
	}
	require.Equal(t, want, got, when)
}
