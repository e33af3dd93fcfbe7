package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// Options are the options of reports. The zero value is ready for use.
type Options struct {
	// Name is the title; "": the file's name, or the device's.
	Name string
	// Rank and WorldSize are the device's rank in the training, and the number of ranks. A
	// WorldSize of 0: those of the steps.
	Rank, WorldSize int
	// WhatIf has option strings, in the form of PYTORCH_CUDA_ALLOC_CONF, under which the recording
	// is replayed. Each takes as long as the allocator's part of the program took. If WhatIf is
	// empty, Suggest adds options that may reduce fragmentation, fewer if the recording has many
	// calls. If neither is set, nothing is replayed.
	WhatIf  []string
	Suggest bool
	// OutOfMemory is the failed request with which [FromCache]'s page begins. Blocks of its step
	// are not listed as never freed. nil: the page begins with the last failed request of the
	// history, if there is one.
	OutOfMemory *memcache.OutOfMemoryError
	// Layers is a summary of the model for the page, in the order of the list; nil: none.
	Layers []Layer
	// Limit, in bytes, is the memory limit in the page's chart; 0: that of the cache or the
	// recording.
	Limit int64
	// Addresses includes the addresses of memory in the page. Otherwise it has the distances
	// between them.
	Addresses bool
	// MaxMemory, in bytes, and MaxWork, in units of about 20 ns, limit the cost of a file in Read.
	// The default of both is 8 for each byte of the file, decompressed, and at least 256 Mi.
	MaxMemory, MaxWork int64
}

// Report is the data of a page about one device. It is immutable, and may be written by several
// goroutines at once.
type Report struct {
	account   *account
	whatIf    []estimate
	layers    []Layer
	addresses bool
}

// The cost of a page for each entry: bytes of memory, and units of work of package budget.
const (
	entryMemory = 130
	entryWork   = 80
)

// The cost of a page for each recording.
const (
	reportMemory = 20_000
	reportWork   = 5000
)

// Read reads a file that [torch.cuda.memory._dump_snapshot] wrote, or a recording in JSON lines.
// Either may be compressed with gzip. It returns a report for each device in it. name is for the
// title and for errors. The contents of files are checked. A file that exceeds the limits is an
// error.
//
// [torch.cuda.memory._dump_snapshot]: https://pytorch.org/docs/stable/torch_cuda_memory.html
func Read(r io.Reader, name string, o Options) ([]*Report, error) {
	limits := budget.Limits{MaxMemory: o.MaxMemory, MaxWork: o.MaxWork}
	if err := limits.Check(); err != nil {
		return nil, fmt.Errorf("report: Read: %w: %w", ErrInvalid, err)
	}
	if r == nil {
		return nil, fmt.Errorf("report: Read: %w: the reader is nil", ErrInvalid)
	}
	list, err := recording.Read(r, name, recording.Options{Limits: limits, Details: true})
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var reports []*Report
	for _, rec := range list {
		n := int64(len(rec.Entries))
		if err := rec.Budget.Charge(reportMemory+n*entryMemory, reportWork+n*entryWork); err != nil {
			return nil, fmt.Errorf("report: %s: %w", name, err)
		}
		a, err := newAccount(fromRecording(rec))
		if err != nil {
			return nil, err
		}
		if o.Name != "" {
			a.name = strings.Replace(rec.Name, name, o.Name, 1)
		}
		a.device = ofRank(a.device, nil, o)
		a.limit = cmp.Or(o.Limit, a.limit)
		report := &Report{account: a, layers: o.Layers, addresses: o.Addresses}
		report.estimate(rec, o)
		reports = append(reports, report)
	}
	if len(reports) == 0 {
		return nil, errors.New("report: " + name + ": the file has no recording")
	}
	return reports, nil
}
