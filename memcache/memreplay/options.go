package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
)

// options are what the command line says.
type options struct {
	files   []string
	configs []string // values of -config
	suggest bool     // -whatif
	json    bool
	plot    string
	limits  recording.Limits
}

// recorded is the value of -config for the options of the file itself.
const recorded = "recorded"

// parse reads the command line. It is nil without an error if help was asked for.
func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("memreplay", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: memreplay [-whatif] [-config OPTIONS]... [-json] [-plot FILE] FILE...")
		f.PrintDefaults()
	}
	f.Func("config", "replay under these `OPTIONS` (PYTORCH_CUDA_ALLOC_CONF, and our own; \"recorded\": the file's); can be repeated", o.addConfig)
	f.BoolVar(&o.suggest, "whatif", false, "replay under the recorded options and under those that are worth a try, and say which serves best")
	f.BoolVar(&o.json, "json", false, "print a JSON object for each file, or for each file and configuration")
	f.StringVar(&o.plot, "plot", "", "with -config: write reserved and allocated memory over time to `FILE`, .svg or .html")
	f.Int64Var(&o.limits.Bytes, "max-bytes", 0, "read at most this many `bytes` of a file, decompressed (default 1 GiB)")
	f.IntVar(&o.limits.Records, "max-records", 0, "read at most this `number` of entries of a file (default 2097152)")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o.files = f.Args()
	switch {
	case len(o.files) == 0:
		err = errors.New("no FILE is given")
	case o.limits.Bytes < 0 || o.limits.Records < 0:
		err = errors.New("-max-bytes and -max-records are positive, or 0 for the default")
	case o.plot != "" && len(o.configs) == 0 && !o.suggest:
		err = errors.New("-plot needs -whatif or a -config; -config recorded shows the file's own")
	case o.plot != "":
		err = checkPlot(o.plot)
	}
	if err != nil {
		fmt.Fprintln(stderr, "memreplay:", err)
		f.Usage()
		return nil, err
	}
	return o, nil
}

func (o *options) addConfig(text string) error {
	if text != recorded {
		if _, err := replay.ParseOptions(text); err != nil {
			return err
		}
	}
	o.configs = append(o.configs, text)
	return nil
}
