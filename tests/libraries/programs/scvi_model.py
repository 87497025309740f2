"""A model that trains itself by a subclass of ``Trainer``."""

import scvi
from around import end

scvi.settings.seed = 3
data = scvi.data.synthetic_iid(batch_size=100, n_genes=30)
scvi.model.SCVI.setup_anndata(data, batch_key="batch")
model = scvi.model.SCVI(data, n_latent=4, n_hidden=8)
options = {"accelerator": "cpu", "batch_size": 32, "check_val_every_n_epoch": 1, "enable_checkpointing": True}
model.train(max_epochs=4, early_stopping=True, **options)
end(model.module.state_dict())
