package cli

import (
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
)

// whatIf is cistern whatif.
type whatIf struct {
	Files  []string `arg:"" name:"file" predictor:"file" help:"Recordings, or - for the standard input."`
	Config []string `short:"c" sep:"none" placeholder:"OPTIONS" help:"Options to compare with the file's own, as in PYTORCH_CUDA_ALLOC_CONF; \"\" is PyTorch's default, \"recorded\" only the file's own. Can be repeated. Without it, a list of options that may help."`
	JSON   bool     `help:"Print a JSON object for each recording and set of options."`
	limits
}

func (*whatIf) example() string { return "cistern whatif -c expandable_segments:True snapshot.pickle" }

// Help lists the options that PyTorch does not have.
func (*whatIf) Help() string {
	return `A recorded memory limit holds unless the options have one; per_process_memory_fraction:1.0 lifts it. Options of memcache alone: memory_limit:BYTES, no_caching:True, exact:False, expandable_granule_mb:2, expandable_remap:True.`
}

// recorded is the value of --config that stands for the file's own options.
const recorded = "recorded"

// Validate is called by kong.
func (c *whatIf) Validate() error {
	for _, text := range c.Config {
		if _, err := replay.ParseOptions(text); text != recorded && err != nil {
			return err
		}
	}
	return nil
}

// estimated is the JSON of a replay under a configuration.
type estimated struct {
	Trace         string   `json:"trace"`
	Config        string   `json:"config"`
	Allocs        int      `json:"allocs"`
	PeakAllocated int64    `json:"peak_allocated"`
	PeakReserved  int64    `json:"peak_reserved"`
	Ratio         float64  `json:"ratio"`
	DriverCalls   int64    `json:"driver_calls"`
	Retries       int64    `json:"retries"`
	OOMs          int64    `json:"ooms"`
	NsPerOp       float64  `json:"ns_per_op"`
	Notes         []string `json:"notes,omitempty"`
}

// Run replays each file under the options.
func (c *whatIf) Run(e *env) error {
	table := newTable(e.stdout, "trace\tconfig\tpeak allocated\tpeak reserved\tratio\tdriver calls\tretries\tooms\tns/op")
	var remarks []string
	for p := range e.programs(c.Files, c.limits) {
		said := make(map[string]bool)
		advice, err := c.estimates(p, func(config string, x *replay.Estimate) {
			if c.JSON {
				e.printJSON(estimated{p.Name, config, x.Allocs, x.PeakAllocated, x.PeakReserved, x.Ratio(), x.DriverCalls,
					x.Retries, x.OOMs, x.NsPerOp(), x.Notes})
				return
			}
			table.row("%s\t%s\t%s\t%s\t%.3f\t%d\t%d\t%d\t%.0f\n", p.Name, label(config), formatBytes(x.PeakAllocated),
				formatBytes(x.PeakReserved), x.Ratio(), x.DriverCalls, x.Retries, x.OOMs, x.NsPerOp())
			for _, n := range x.Notes {
				if !said[n] {
					said[n] = true
					remarks = append(remarks, p.Name+": "+n)
				}
			}
		})
		if err != nil {
			e.fail(err)
		}
		if advice != "" && !c.JSON {
			remarks = append(remarks, p.Name+": "+advice)
		}
	}
	table.end(remarks)
	return nil
}

// estimates replays a program under its own options and under each set of options to try, which is
// the suggested ones if none is given. advice compares them.
func (c *whatIf) estimates(p *recording.Program, yield func(config string, e *replay.Estimate)) (advice string, err error) {
	s, err := replay.NewScenario(p)
	if err != nil {
		return "", err
	}
	own, ownText, err := replay.RecordedOptions(p)
	if err != nil {
		return "", err
	}
	base, err := s.Estimate(own)
	if err != nil {
		return "", err
	}
	yield(ownText, base)
	options := c.Config
	if len(options) == 0 {
		options = replay.Suggestions(p, base.PeakReserved)
	}
	var names []string
	var tried []*replay.Estimate
	for _, o := range options {
		if o == recorded {
			continue
		}
		config, text, err := replay.OptionsFor(p, o)
		if err != nil {
			return "", err
		}
		if config == own {
			continue
		}
		e, err := s.Estimate(config)
		if err != nil {
			return "", err
		}
		yield(text, e)
		names, tried = append(names, o), append(tried, e)
	}
	if len(tried) == 0 {
		return "", nil
	}
	return replay.Advice(base, names, tried), nil
}

// label formats an option string for a table.
func label(config string) string {
	if config == "" {
		return "default"
	}
	return config
}
