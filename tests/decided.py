"""Deliberate differences between jfit and MXNet 1.9.1; tests may deviate from MXNet's results only because of these.

A test that accepts a difference names its entry.  `where` is the test of jfit's behavior.
"""

from typing import NamedTuple


class Decided(NamedTuple):
    """One difference.

    Attributes:
        mxnet: what MXNet does.
        jfit: what jfit does instead.
        where: "file::test" that holds jfit to it.
    """

    mxnet: str
    jfit: str
    where: str


DECIDED = {
    "fix_gamma": Decided(
        "overwrites gamma of a BatchNorm with fix_gamma by 1 on every forward pass, and lets weight decay move it in between",
        "that gamma is exactly 1 always, and is not trained; its optimizer state in files is zero; what its update changes for "
        "others (Nadam's schedule, the groups of LARS, who sees LBSGD's late rate) is as in MXNet",
        "test_mx_train.py::test_gamma_with_fix_gamma_is_always_one",
    ),
    "padded_rows": Decided(
        "counts the rows that an iterator wrapped around in score() and in training metrics",
        "those rows train, as in MXNet, but never count",
        "test_mxnet_module_fit.py::test_padding_rows_are_trained_on_but_excluded_from_metrics",
    ),
    "device_metric": Decided(
        "metrics that average per update call (mse, f1 ...) are averaged over the slices of the devices",
        "a batch is one update, whatever devices it lay on",
        "test_mxnet_module_fit.py::test_a_metric_receives_the_whole_batch_on_any_number_of_devices",
    ),
    "kvstore_names": Decided(
        "kvstore names that MXNet does not know are local stores, or none on one device",
        "they raise, with the list of the types",
        "test_mxnet_kvstore.py::test_an_unknown_name_raises_with_the_types",
    ),
    "state_counts": Decided(
        "`.states` files hold no update counts, so Adam starts at t = 0 when a training is resumed",
        "files that jfit writes hold them, so resuming equals going on; MXNet's own files load as MXNet loads them",
        "test_mxnet_train.py::test_a_resumed_training_equals_the_uninterrupted_one_bit_for_bit",
    ),
    "device_statistics": Decided(
        "each device keeps moving statistics of its own until get_params averages them, so an evaluation in between uses "
        "other ones on each device",
        "there is one set, the mean over the devices, after every step; get_params gives the same numbers",
        "test_mxnet_module.py::test_moving_statistics_are_the_mean_over_the_devices_after_every_step",
    ),
    "output_axis": Decided(
        "joins the devices' outputs along axis 0 unless the output carries a `__layout__` attribute",
        "joins them along the axis where their rows are, which follows from the layout of the data",
        "test_mxnet_module_passes.py::test_the_layout_determines_the_batch_axis",
    ),
    "rolled_rows": Decided(
        "an iterator that rolls over reports old rows as `pad`, so predict cuts off as many new ones",
        "the report is the same, but rows that rolled over are new: they count, and nothing is cut off",
        "test_mxnet_module_fit.py::test_rows_that_rolled_over_are_included",
    ),
    "idle_gradients": Decided(
        "a Monitor also reports `<node>_backward_output<i>` for gradients that nobody asked for, whatever their memory holds",
        "it reports the gradient itself",
        "test_mxnet_monitor.py::test_every_recorded_statistic_of_mxnet_is_reproduced_including_gradients",
    ),
    "set_params_on_store": Decided(
        "where the key-value store updates, set_params after init_optimizer is undone by the next update: the store keeps a "
        "copy of the old parameters",
        "the next update starts from the parameters that were set",
        "test_mx_differences_found.py::test_set_params_is_kept_where_the_store_updates",
    ),
    "late_backward": Decided(
        "backward after an update or set_params without a forward in between mixes the old activations with the new weights",
        "it takes the gradient at the new parameters; the outputs stay those of the forward pass",
        "test_mx_differences_found.py::test_a_backward_after_the_update_computes_the_gradient_at_the_new_parameters",
    ),
    "fresh_predict": Decided(
        "FeedForward.predict (and MXNet.jl's with overwrite=false) may use the weights of an earlier predict",
        "it always uses the weights of now",
        "test_mxnet_feedforward_julia.py::test_predict_without_overwrite_requires_equal_shapes_and_uses_current_parameters",
    ),
    "julia_validation": Decided(
        "MXNet.jl validates in training mode",
        "validation is an evaluation, as everywhere else; trained weights are the same",
        "test_mxnet_feedforward_julia.py::test_validation_runs_in_evaluation_mode",
    ),
    "validation_tail": Decided(
        "FeedForward rolls the tail of eval_data=(X, y) over to the next validation",
        "every row counts once in each validation",
        "test_mxnet_feedforward.py::test_every_validation_row_is_used_once_in_each_epoch",
    ),
    "stale_gradient": Decided(
        "Trainer raises about a stale gradient after others were pushed already",
        "it raises before anything is written",
        "test_mxnet_trainer.py::test_a_stale_gradient_raises_before_any_update",
    ),
    "lazy_update": Decided(
        "Ftrl with row_sparse weights, LARS and LBSGD update only the rows that a row_sparse gradient holds; SGD with 16-bit "
        "weights and float32 masters updates all; AdaGrad with decay raises",
        "SGD, Adam, AdaGrad and GroupAdaGrad update the rows of the gradient, masters and decay included; all others every row",
        "test_optim_rows.py::test_the_given_rows_are_updated_as_in_a_dense_update_and_no_others",
    ),
    "whole_passes": Decided(
        "outputs and gradients of the last batch are there after fit",
        "a pass of fit whose steps shared dispatches keeps none; one with a callback that sees every batch does",
        "test_mxnet_epochs.py::test_an_epoch_of_few_dispatches_keeps_no_outputs",
    ),
    "concat_open_part": Decided(
        "infer_shape_partial of a Concat adds up the parts it knows and takes the rest for 0",
        "the size along the axis is unknown until every part is known",
        "test_infer_golden.py::test_every_shape_mxnet_infers_is_inferred",
    ),
    "softmax_all_axes": Decided(
        "SoftmaxOutput of data (n, a, b), neither multi_output nor preserve_shape, wants a label (n, a) and reads its first n",
        "all axes but the first are the classes, so the label is (n,)",
        "test_infer_golden.py::test_every_shape_mxnet_infers_is_inferred",
    ),
    "inference_knows_more": Decided(
        "infer_shape_partial and infer_type_partial leave open, or refuse, sizes and dtypes that follow from what is known",
        "they are filled in; what MXNet knows is the same",
        "test_infer_golden.py::test_every_shape_mxnet_infers_is_inferred",
    ),
    "untaken_gradient": Decided(
        "cond does not touch the gradient buffers of inputs that only the branch not taken reads: they keep old values",
        "those gradients are 0",
        "test_control.py::test_a_file_of_mxnet_gives_its_numbers_and_gradients",
    ),
    "loop_padding": Decided(
        "outputs of while_loop beyond the last step are not defined; a loop that never runs fails",
        "they are zeros; a loop that never runs gives zeros and its first values",
        "test_control.py::test_a_loop_that_never_runs_gives_zeros_and_its_first_values",
    ),
    "loop_statistics": Decided(
        "a BatchNorm in a loop has no gradient: training fails, evaluation reads its moving statistics",
        "it trains on the statistics of each step; the moving ones stay, as they do in MXNet",
        "test_control.py::test_gradients_missing_in_mxnet_agree_with_finite_differences",
    ),
    "custom_states": Decided(
        "a custom operator may write its auxiliary states in every pass, also in backward",
        "what forward writes in training is kept, anything else is lost",
        "test_custom.py::test_numbers_gradients_and_states",
    ),
    "svrg_full_names": Decided(
        "SVRGModule assigns the gradient to every parameter with `full` in its name, so that `fullyconnected0` never learns",
        "it learns as any other; only `<parameter>_full` is a full gradient",
        "test_mx_svrg.py::test_a_layer_with_full_in_its_name_is_trained",
    ),
    "svrg_first_step": Decided(
        "SVRGModule overwrites the devices' parameters by zeros where the key-value store updates, until the first update",
        "the first gradient is taken at the parameters",
        "test_mx_svrg.py::test_the_first_gradient_is_taken_at_the_parameters_on_several_devices",
    ),
    "svrg_begin_epoch": Decided(
        "a fit of SVRGModule fails if begin_epoch is no multiple of update_freq, or if a parameter is fixed",
        "it takes the full gradient first; fixed parameters are left alone",
        "test_mx_svrg.py::test_a_fit_that_begins_between_full_gradients_computes_one_first",
    ),
    "csv_rounds": Decided(
        "CSVIter and LibSVMIter leave the rows that filled up the last batch out of the next epoch",
        "every epoch begins at the first row and has all of them",
        "test_mx_io_files.py::test_an_epoch_of_a_csv_file_has_every_row_once",
    ),
    "small_files": Decided(
        "CSVIter and LibSVMIter fail where a file has fewer rows than a batch, or, with round_batch=False, fill up with zeros",
        "the rows are repeated, and `pad` counts the repeated ones",
        "test_mx_io_files.py::test_a_batch_larger_than_the_file_repeats_its_rows",
    ),
    "text_in_tables": Decided(
        "CSVIter reads text that is no number as the number before it or as 0, and cuts fractions off for integer types; "
        "LibSVMIter gives matrices whose indices lie beyond their columns, and reads numbers beyond float32 as 1e38",
        "the file is refused, with line and column",
        "test_mx_io_files.py::test_invalid_numbers_in_a_file_raise",
    ),
    "shuffled_dtype": Decided(
        "NDArrayIter with shuffle=True gives arrays of other dtypes as float32",
        "the dtype stays",
        "test_mx_io_files.py::test_shuffling_keeps_the_dtype_of_arrays",
    ),
    "roll_over_twice": Decided(
        "NDArrayIter with roll_over forgets the tail when next() is called again behind the end of an epoch",
        "the tail rolls over",
        "test_mx_io_files.py::test_calling_next_again_at_the_end_keeps_rows_that_roll_over",
    ),
    "adamax_zero": Decided(
        "Adamax makes a weight NaN whose gradients were all 0 so far (0 / 0), such as a gamma that is fixed",
        "such a weight is unchanged; every other one has MXNet's numbers",
        "test_optim_rules.py::test_adamax_is_unchanged_where_every_gradient_was_zero",
    ),
    "dcasgd_momentum": Decided(
        "DCASGD with momentum raises ValueError at the first update",
        "it does what its formula says",
        "test_optim_rules.py::test_dcasgd_has_momentum",
    ),
    "lamb_master": Decided(
        "LAMB with multi_precision, updated one by one, never changes the float32 masters, so weights stay near the start",
        "masters are updated, as MXNet does where several parameters are updated by one call",
        "test_optim_rules.py::test_lamb_updates_its_float32_master_weight",
    ),
    "layer_norms": Decided(
        "LARS and LAMB with multi_precision take the norms of 16-bit weights, squared in 16 bits",
        "norms are those of the float32 masters; states differ by up to 1e-4",
        "test_optim_golden.py::test_weights_and_states_are_mxnets_after_every_step",
    ),
    "clip_zero": Decided(
        "clip_gradient=0 clips nothing in SGD, Adam and other kernels, and sets gradients to 0 in AdaGrad, Nadam and others; "
        "a negative bound clips nothing, or mixes values up",
        "a bound that is not positive clips nothing, whatever the optimizer",
        "test_optim_rules.py::test_a_clipping_bound_that_is_not_positive_disables_clipping",
    ),
    "nadam_devices": Decided(
        "a Module that updates on several devices without its store multiplies Nadam's one schedule for each copy of each "
        "parameter, so the copies drift apart",
        "it is multiplied once for each parameter, so copies stay equal and are those of one device",
        "test_mxnet_optimizer_named.py::test_shared_scalars_are_equal_on_any_number_of_devices",
    ),
    "lars_devices": Decided(
        "a Module that updates on several devices without its store shows a new rate to LARS's momentum on the first device "
        "only, so the copies drift apart",
        "every device sees it as one device does, so copies stay equal and are those of one device",
        "test_mxnet_optimizer_named.py::test_shared_scalars_are_equal_on_any_number_of_devices",
    ),
    "half_overflow": Decided(
        "with multi_precision a weight of 16 bits that is inf is finite again once its master is",
        "it is inf while its master is beyond its type, as in MXNet, and NaN when the master comes back",
        "test_optim_rules.py::test_an_overflowing_weight_becomes_inf_and_stays_inf_as_in_mxnet",
    ),
    "test_counts": Decided(
        "the optimizer named test counts no updates",
        "it does",
        "test_mxnet_optimizer_named.py::test_test_adds_gradients_and_counts_its_updates",
    ),
    "lbsgd_sums": Decided(
        "LBSGD's first sum is the first gradient's own buffer, which the second gradient overwrites; between sums it runs an "
        "update with rate 0, which spreads a NaN of the gradient",
        "a Module repeats the buffer; an Updater and a Trainer average all gradients; between sums nothing changes",
        "test_mxnet_optimizer_named.py::test_lbsgds_gradient_sums_are_separate_from_the_states",
    ),
    "adadelta_gradient": Decided(
        "AdaDelta multiplies the caller's gradient by rescale_grad in place",
        "gradients stay as they are",
        "test_mxnet_optimizer_named.py::test_adadelta_does_not_modify_the_gradient",
    ),
    "half_updates": Decided(
        "without multi_precision weights of 16 bits are updated in 16-bit arithmetic with 16-bit state; RMSProp, AdaDelta and "
        "others fail",
        "the arithmetic and the state are float32, and the weight is rounded after every update; bfloat16 too",
        "test_mxnet_optimizer.py::test_16_bit_weights_are_rounded_without_master_weights_and_not_with_them",
    ),
    "momentum_of_rates": Decided(
        "LARS scales momentum by rate / last rate only for the first of its calls with a new rate: four parameters, or one",
        "so does the class; `jfit.optim.lars` scales it for all parameters unless the size of a call (group) is passed",
        "test_optim_rules.py::test_momentum_is_rescaled_for_a_new_learning_rate",
    ),
    "image_epochs": Decided(
        "ImageRecordIter leaves the rows that a batch wrapped out of the next epoch; with round_batch=False a short batch "
        "ends in undefined rows and says pad 0",
        "every epoch has every row; a short batch is filled from its start, and pad says so",
        "test_images_iter.py::test_an_epoch_contains_every_row_once_and_wraps_to_its_first_rows",
    ),
    "image_parts": Decided(
        "ImageRecordIter splits a file into parts of like bytes, or with an index into parts of ceil(rows / parts) rows, of "
        "which the last may be empty",
        "parts differ by at most one row",
        "test_images_iter.py::test_parts_contain_every_row_once_and_sizes_differ_by_at_most_one",
    ),
    "image_randomness": Decided(
        "the random numbers of ImageRecordIter depend on the number of threads",
        "those of a row follow from seed, epoch and row",
        "test_images_iter.py::test_batches_do_not_depend_on_the_number_of_workers",
    ),
    "record_after_end": Decided(
        "a record reader that has read to the end gives None for every key from then on, until reset()",
        "it reads by key from anywhere",
        "test_records.py::test_files_of_mxnet_are_read_in_order_and_by_key",
    ),
    "pickled_writer": Decided(
        "a copy of an open record writer in another process empties the file",
        "an open writer cannot be pickled",
        "test_records.py::test_a_reader_is_reopened_in_another_process",
    ),
    "pearsonr_global": Decided(
        "the global value of a micro PearsonCorrelation is always 0.0",
        "it is that of everything since reset()",
        "test_mxnet_metric.py::test_the_global_value_of_a_micro_correlation_is_over_all_rows",
    ),
    "pcc_labels": Decided(
        "PCC reads labels and outputs of each batch, and grows by a class for each number that is new",
        "the classes are those of the outputs, so that nothing waits; labels beyond them count as one class more",
        "test_metrics_oracles.py::test_labels_out_of_range_of_the_classes",
    ),
    "metric_shapes": Decided(
        "mae, mse and rmse of one label a row and several outputs compare each output with the same label",
        "they refuse it, as they do every number of labels that is not that of the outputs",
        "test_metrics.py::test_errors_describe_the_problem",
    ),
    "metric_index": Decided(
        "CompositeEvalMetric.get_metric gives a ValueError back where there is no such metric",
        "it raises it",
        "test_mxnet_metric.py::test_invalid_use_raises_mxnets_error_classes",
    ),
}
