package main

import "github.com/trueload/trueload/internal/spec"

type schemaCmd struct{}

func (schemaCmd) Help() string {
	return "Editors that know YAML schemas complete and check an experiment file with it:\n\n  trueload schema > trueload.schema.json\n  # yaml-language-server: $schema=trueload.schema.json"
}

func (schemaCmd) Run(c *console) error {
	b, err := spec.Schema()
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(b, '\n'))
	return err
}
